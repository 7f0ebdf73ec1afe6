// Package bus is how the fabric's services and nodes talk: the ports Inbox, Outbox, Caller and Objects, and all there is
// to know about NATS behind them.
//
// It owns the accounts, streams, buckets, subjects, permissions and limits (streams.go, the one place that declares
// them), the connection of a service to one account, the embedded server of `weft up`, and Follow, the loop that reads
// a stream. The adapters of the ports are in membus (synchronous, for tests) and busnats (NATS), held
// together by the contract suites in bustest.
//
// It never knows what a message means, never copies a foreign header into a stream, and never sends the header
// Nats-Expected-Last-Msg-Id, one malformed copy of which stops a replicated stream for good.
package bus
