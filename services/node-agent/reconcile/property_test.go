package reconcile

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestProperties drives a node through random assignments, processes, restarts, loss of contact and time.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := newNode()
		const sec = int64(time.Second)
		ids := []ID{{"a", 1}, {"a", 2}, {"b", 1}, {"c", 1}}
		seq := uint64(1)
		released := map[ID]bool{} // said by any agent
		settle := func() {
			fenced := n.fence != 0 && n.now >= n.fence
			said := map[ID]bool{}
			for id, h := range n.have {
				said[id] = h.Said.Released
			}
			did, next := n.settle()
			for _, x := range did {
				id := x.of()
				h := n.have[id]
				if h == nil {
					h = &Attempt{Phase: Empty} // forgotten in the same breath
				}
				switch x := x.(type) {
				case Launch:
					if fenced {
						t.Fatalf("%v launched behind the fence", id)
					}
					if n.launched[id] > 0 {
						t.Fatalf("%v launched again after its processes had run", id)
					}
				case SayReleased:
					released[id], said[id] = true, true
					if h.Phase != Empty {
						t.Fatalf("%v released while %v", id, h.Phase)
					}
					if x.Completed && h.Bad > 0 {
						t.Fatalf("%v completed with %d bad ranks", id, h.Bad)
					}
				case Forget:
					if !said[id] {
						t.Fatalf("%v forgotten before its release was said", id)
					}
				}
			}
			for id, h := range n.have {
				if h.Phase >= Ended || h.Phase == Preparing {
					continue
				}
				i := slices.IndexFunc(n.want, func(w Want) bool { return w.ID == id })
				mustDie := n.known && i < 0 || i >= 0 && n.want[i].Stop && n.want[i].KillAtNS <= n.now || fenced
				if mustDie && h.KilledNS == 0 {
					t.Fatalf("%v is %v and was not killed", id, h.Phase)
				}
				if mustDie && next == 0 {
					t.Fatalf("%v must die and nothing will look again", id)
				}
			}
			if again, _ := Decide(n.world()); len(again) != 0 {
				t.Fatalf("deciding again does more: %v", describe(again))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"assign": func(t *rapid.T) {
				got := seq + rapid.Uint64Range(0, 3).Draw(t, "ahead") - 1
				var want []Want
				for _, id := range ids {
					// As the scheduler does: what was released is not placed here again under the same name.
					switch rapid.IntRange(0, 3).Draw(t, id.Job) {
					case 0:
						if !released[id] && n.launched[id] == 0 {
							want = append(want, Want{ID: id})
						} else if n.have[id] != nil && n.have[id].Phase != Empty {
							want = append(want, Want{ID: id})
						}
					case 1:
						want = append(want, Want{ID: id, Stop: true, KillAtNS: n.now + rapid.Int64Range(0, 20).Draw(t, "grace")*sec})
					}
				}
				before := slices.Clone(n.want)
				ok := n.assign(Order{1, got}, want)
				if ok != (got >= seq) && seq > 1 {
					t.Fatalf("assignment %d after %d: obeyed %v", got, seq, ok)
				}
				if !ok && !slices.Equal(before, n.want) {
					t.Fatal("a stale assignment changed what is wanted")
				}
				seq = max(seq, got)
			},
			"process": func(t *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(t, "id")
				h := n.have[id]
				if h == nil || h.Said.Released {
					t.Skip()
				}
				switch h.Phase {
				case Preparing:
					h.Phase = Starting
					n.launched[id]++
				case Starting:
					h.Phase, h.Started = Running, true
				case Running:
					if rapid.Bool().Draw(t, "bad") {
						h.Bad++
					} else {
						h.Phase, h.EndedNS, h.Completed = Ended, n.now, h.Bad == 0 && !h.Stopping
					}
				case Ended:
					h.Phase = Empty
				case Empty:
					h.Flushed = true
				}
			},
			"restart": func(*rapid.T) { n.restart() },
			"contact": func(t *rapid.T) { n.fence = n.now + rapid.Int64Range(5, 60).Draw(t, "fence")*sec },
			"time":    func(t *rapid.T) { n.now += rapid.Int64Range(0, 30).Draw(t, "passes") * sec },
			"":        func(*rapid.T) { settle() },
		})
	})
}
