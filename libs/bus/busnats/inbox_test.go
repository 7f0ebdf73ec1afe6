package busnats

import (
	"testing"

	"github.com/weft-fabric/weft/libs/bus"
)

// An inbox goes on behind the end that its follower saw, not behind what is stored by the time that it looks: that would
// pass over inputs nobody has read.
func TestRewindGoesOnBehindTheEndThatWasSeen(t *testing.T) {
	for _, c := range []struct {
		what    string
		created int64 // of the stream read so far; 0 = nothing was read
		life    int
		next    uint64
		kept    int
	}{
		{"lost its tail", 7, 2, 91, 0},
		{"made anew", 6, 2, 1, 0},
		{"nothing read yet", 0, 2, 91, 0},
		{"sought meanwhile", 7, 3, 91, 1},
	} {
		i := &inbox{created: c.created, life: c.life, buf: []bus.Input{{Seq: 100}}, bytes: 1}
		next := i.rewind(2, &bus.Rewound{Next: 101, Last: 90, CreatedNS: 7})
		if next != c.next || len(i.buf) != c.kept || i.created != 7 {
			t.Errorf("%s: goes on at %d with %d buffered", c.what, next, len(i.buf))
		}
	}
}
