package bus

import (
	"context"
	"errors"
)

// Msg is one stored message as Follow delivers it.
type Msg struct {
	Seq     uint64
	TimeNS  int64 // when the server stored it
	Subject string
	Header  map[string]string
	Data    []byte
	Pending uint64 // how many matching messages the stream held behind it; 0 = the reader is at the tail
}

// ErrRewound: the stream is not the one read so far: it was made anew, or its tail was lost.
var ErrRewound = errors.New("bus: the stream ends before what was read from it")

// Follow reads a stream from sequence from on (1 or 0 = the start) and hands every message matching filter ("" = all)
// to sink, in order, without gaps, each once, in batches of what has arrived. It works until ctx ends, across
// restarts of the server, or until ErrRewound. sink is called from Follow's goroutine; while it blocks, reading pauses.
func Follow(ctx context.Context, conn *Conn, stream, filter string, from uint64, sink func([]*Msg)) error {
	return errors.New("bus: not yet")
}
