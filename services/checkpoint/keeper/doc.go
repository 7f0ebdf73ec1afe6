// Package keeper is the rule of the checkpoint service: the index of saves that the checkpoint log folds into, when a
// save is complete, and which may be deleted. It does not choose what a job resumes from: the scheduler does, from the
// saves that this log committed.
//
// It is pure: no files, no clock, no bus. It never touches a byte of a save: that a part was verified is told to it.
//
// Saves are ordered by attempt (the fence epoch), then by step; a clock orders nothing. A save is complete when every
// rank of the set that it declares has a verified part of the same attempt, step and class: a set, never a count.
package keeper
