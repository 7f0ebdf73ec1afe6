package shell

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// beat is what was last seen of a rank's progress file. Only that it changes counts, on this agent's own clock: a rank may
// write whatever time it likes, and clocks jump.
type beat struct {
	mtime time.Time
	seen  time.Time
}

// scanBeats looks which ranks have told of progress since the last time. Ranks that exited have nothing more to tell.
func (r *run) scanBeats(now time.Time) {
	for _, k := range r.launch.Ranks {
		if slices.ContainsFunc(r.exits, func(e shim.RankExit) bool { return e.Rank == k.Rank }) {
			delete(r.beats, k.Rank)
			continue
		}
		info, err := os.Stat(filepath.Join(r.dir, shim.FileBeat(k.Rank)))
		if err != nil {
			continue // it never told of any
		}
		if b, ok := r.beats[k.Rank]; !ok || !b.mtime.Equal(info.ModTime()) {
			if r.beats == nil {
				r.beats = map[uint32]beat{}
			}
			r.beats[k.Rank] = beat{info.ModTime(), now}
		}
	}
	r.BeatNS = 0
	for _, b := range r.beats {
		r.BeatNS = max(r.BeatNS, now.UnixNano()-int64(now.Sub(b.seen)))
	}
}

// quietest is the rank that has told of no progress for longest; of equals the lowest.
func (r *run) quietest() (rank uint32, b beat) {
	first := true
	for k, x := range r.beats {
		if first || x.seen.Before(b.seen) || x.seen.Equal(b.seen) && k < rank {
			rank, b, first = k, x, false
		}
	}
	return rank, b
}

// step is what the file says; 0 if it cannot be read.
func (beat) step(file string) int64 {
	f, err := os.Open(file) // #nosec G304: of a run directory
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	var told struct {
		Step int64 `json:"step"`
	}
	_ = json.NewDecoder(f).Decode(&told)
	return told.Step
}
