// Package allocator owns the decision who gets what, where. It is stateless: any replica that has read the ledger far
// enough can answer. It never writes the ledger and never launches anything.
package allocator
