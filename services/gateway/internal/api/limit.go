package api

import (
	"sync"
	"time"
)

// limiter is one token bucket a tenant.
type limiter struct {
	rate, burst float64
	now         func() time.Time

	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	level float64
	at    time.Time
}

func newLimiter(rate, burst float64, now func() time.Time) *limiter {
	return &limiter{rate: rate, burst: burst, now: now, buckets: map[string]*bucket{}}
}

// take spends cost, or says that the tenant has to wait.
func (l *limiter) take(tenant string, cost float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	b := l.buckets[tenant]
	if b == nil {
		b = &bucket{level: l.burst, at: now}
		l.buckets[tenant] = b
	}
	b.level = min(l.burst, b.level+max(0, now.Sub(b.at).Seconds())*l.rate)
	b.at = now
	if b.level < cost {
		return false
	}
	b.level -= cost
	return true
}
