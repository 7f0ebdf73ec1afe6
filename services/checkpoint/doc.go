// Package checkpoint is the service that owns the checkpoint log: which saves exist, where their parts lie, whether every
// byte was verified, and which of them may be restored. Agents report parts of saves in SAVES; the service verifies what
// it can reach and commits facts to CHECKPOINTS, where the scheduler reads them; others ask the leader.
//
// It never touches the state of a job, never chooses which save an attempt resumes from, and delays no placement: while
// it is away saving goes on, and an attempt that must restore waits at its launch.
package checkpoint
