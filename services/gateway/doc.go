// Package gateway is the door of the fabric: gRPC and REST for people and programs, CloudEvents over NATS for pipelines,
// sign-in and tenancy. It is the only bridge from outside to the bus's core.
//
// It never decides anything about a job, and keeps no state beyond a projection of the ledger and a token file: it
// checks what arrives, writes it as a fresh message into REQUESTS, waits until its projection has passed the commit that
// consumed it, and answers what the ledger then says.
package gateway
