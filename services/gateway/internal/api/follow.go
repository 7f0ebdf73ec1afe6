package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/libs/bus"
)

// readBatch bounds one read of a stream.
const readBatch = 256

// reading is one caller's way through a stream.
type reading struct {
	inbox bus.Inbox
	from  uint64 // passed already
	until uint64 // last sequence to read; unset while followed
	ends  bool   // until is set
	// watch looks whether the reading has an end by now, and then sets it; otherwise wake says when to look again.
	watch func() (wake <-chan struct{}, err error)
	each  func(in bus.Input) error
}

// run reads until the end, the caller's or the server's.
func (r *reading) run(ctx context.Context, quit <-chan struct{}) error {
	r.inbox.Seek(r.from)
	for {
		var wake <-chan struct{}
		if r.watch != nil && !r.ends {
			var err error
			if wake, err = r.watch(); err != nil {
				return err
			}
		}
		if r.ends && r.from >= r.until {
			return nil
		}
		ins, err := r.inbox.Next(ctx, readBatch)
		if err != nil && ctx.Err() == nil {
			return status.Error(codes.Unavailable, oneLine("the stream cannot be read now: "+err.Error()+"; try again"))
		}
		for _, in := range ins {
			if r.ends && in.Seq > r.until {
				return nil
			}
			r.from = in.Seq
			if err := r.each(in); err != nil {
				return err
			}
		}
		if len(ins) > 0 {
			continue
		}
		select {
		case <-r.inbox.Wake():
		case <-wake:
		case <-quit:
			return errGoingDown
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}
