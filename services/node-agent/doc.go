// Package nodeagent runs one machine of the fabric: it makes what runs here agree with what the scheduler assigned,
// and says what happened.
//
// It owns the machine's ranks, their files and their devices. It never knows other machines, never decides what should
// run, and is never the parent of a rank: a shim is (package shim), so that ranks outlive every agent and the next
// agent learns what happened meanwhile.
//
// The rule is in reconcile (pure); internal/shell performs it; this package wires them. Every binary that contains an
// agent must call MaybeShim first in main.
package nodeagent
