package api

import (
	"testing"
	"time"
)

func TestLimiter(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLimiter(10, 20, func() time.Time { return now })
	take := func(tenant string, cost float64, want bool) {
		t.Helper()
		if got := l.take(tenant, cost); got != want {
			t.Errorf("at %v: %s takes %v: %v", now.Sub(time.Unix(0, 0)), tenant, cost, got)
		}
	}
	take("a", 20, true)
	take("a", 1, false)
	take("b", 20, true)
	now = now.Add(100 * time.Millisecond)
	take("a", 1, true)
	take("a", 1, false)
	now = now.Add(-time.Hour) // a clock set back gives nothing and takes nothing
	take("a", 1, false)
	now = now.Add(2 * time.Hour) // the burst is the most that gathers
	take("a", 21, false)
	take("a", 20, true)
}
