package jobspec

import (
	"time"

	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// The defaults of a manifest.
const (
	DefaultCPUMilli    = 1000
	DefaultMemoryBytes = 1 << 30
	DefaultLight       = 10 * time.Minute
	DefaultFull        = time.Hour
	DefaultDisaster    = 24 * time.Hour
	DefaultGrace       = 30 * time.Second
	DefaultRestarts    = 3
	DefaultBackoff     = 10 * time.Second
)

// Defaults sets every field that the user left out. It works on spec itself; Hash is the same before and after.
func Defaults(spec *weftv1.JobSpec) {
	if !spec.HasFramework() {
		spec.SetFramework(weftv1.Framework_FRAMEWORK_NONE)
	}
	for _, g := range spec.GetGroups() {
		least, most := Size(g)
		g.SetMin(least)
		g.SetMax(most)
		if !g.HasGpuMilli() {
			g.SetGpuMilli(0)
		}
		if !g.HasCpuMilli() {
			g.SetCpuMilli(DefaultCPUMilli)
		}
		if !g.HasMemoryBytes() {
			g.SetMemoryBytes(DefaultMemoryBytes)
		}
	}
	if !spec.HasResize() {
		spec.SetResize(weftv1.Resize_RESIZE_RESTART)
	}
	if !spec.HasCheckpoint() {
		spec.SetCheckpoint(&weftv1.CheckpointPolicy{})
	}
	c := spec.GetCheckpoint()
	setDuration(c.HasLightNs(), c.SetLightNs, DefaultLight)
	setDuration(c.HasFullNs(), c.SetFullNs, DefaultFull)
	setDuration(c.HasDisasterNs(), c.SetDisasterNs, DefaultDisaster)
	setDuration(c.HasGraceNs(), c.SetGraceNs, DefaultGrace)
	if !spec.HasRestart() {
		spec.SetRestart(&weftv1.RestartPolicy{})
	}
	r := spec.GetRestart()
	if !r.HasMax() {
		r.SetMax(DefaultRestarts)
	}
	setDuration(r.HasBackoffNs(), r.SetBackoffNs, DefaultBackoff)
	if !spec.HasPreemptible() {
		spec.SetPreemptible(true)
	}
}

func setDuration(has bool, set func(int64), d time.Duration) {
	if !has {
		set(int64(d))
	}
}

// WithDefaults returns a copy with the defaults set.
func WithDefaults(spec *weftv1.JobSpec) *weftv1.JobSpec {
	c := proto.CloneOf(spec)
	Defaults(c)
	return c
}
