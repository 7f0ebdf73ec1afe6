package bus

import (
	"errors"
	"testing"
	"time"
)

// An end that comes too early is believed of a single server at once, of replicas only if it stays so.
func TestAReplicaThatLedIsNotBelievedAtOnce(t *testing.T) {
	now := time.Unix(1000, 0)
	at := func() *follower { return &follower{stream: "S", next: 11, created: 7} }
	type look struct {
		created  int64
		last     uint64
		replicas int
		after    time.Duration
		want     string // ok, doubt, rewound
	}
	for what, looks := range map[string][]look{
		"one server":              {{7, 9, 1, 0, "rewound"}},
		"one server, made anew":   {{8, 99, 1, 0, "rewound"}},
		"at its end":              {{7, 10, 3, 0, "ok"}},
		"a late answer":           {{7, 9, 3, 0, "doubt"}, {7, 12, 3, time.Second, "ok"}, {7, 9, 3, time.Minute, "doubt"}},
		"a lost tail":             {{7, 9, 3, 0, "doubt"}, {7, 9, 3, doubtFor - 1, "doubt"}, {7, 10, 3, doubtFor - 1, "ok"}},
		"a lost tail that stays":  {{7, 9, 3, 0, "doubt"}, {7, 9, 3, doubtFor, "rewound"}},
		"replicas, and made anew": {{8, 99, 3, 0, "doubt"}, {8, 99, 3, doubtFor, "rewound"}},
	} {
		f := at()
		for n, l := range looks {
			got := "ok"
			if err := f.check(l.created, l.last, l.replicas, now.Add(l.after)); errors.Is(err, ErrRewound) {
				got = "rewound"
				if r := (*Rewound)(nil); !errors.As(err, &r) || r.Last != l.last || r.CreatedNS != l.created || r.Next != 11 {
					t.Errorf("%s: %+v", what, r)
				}
			} else if err != nil {
				got = "doubt"
			}
			if got != l.want {
				t.Errorf("%s, look %d: %s, want %s", what, n, got, l.want)
			}
		}
	}
}
