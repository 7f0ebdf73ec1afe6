// Package scheduler owns the ledger: the life of every job, node and queue. It turns requests, reports and plans into
// committed facts, and writes what follows from them: each node's desired set and the events of the outside world.
//
// It never chooses placements: it asks the allocator, and checks what it is told against its newest state.
package scheduler
