package busnats

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
)

// What a writer may do next depends on what an error is: try again (unavailable), wait for room (full), read (position), or
// give up (none of these).
func TestErrorsSayWhatAWriterMayDo(t *testing.T) {
	api := func(http int, code jetstream.ErrorCode) error {
		return &jetstream.APIError{Code: http, ErrorCode: code, Description: "why"}
	}
	kinds := []error{bus.ErrPosition, bus.ErrFull, bus.ErrUnavailable}
	for _, c := range []struct {
		err  error
		want error
	}{
		{api(400, codeWrongLast), bus.ErrPosition},
		{api(400, codeWrongLastConstant), bus.ErrPosition},
		{api(503, codeStoreFailed), bus.ErrFull},
		{api(503, codeNoResources), bus.ErrFull},
		{api(500, codeStorageExceeded), bus.ErrFull},
		{api(500, codeMemoryExceeded), bus.ErrFull},
		{api(400, codeAccountExceeded), bus.ErrFull},
		{api(503, 10008), bus.ErrUnavailable}, // no leader
		{api(429, 10167), bus.ErrUnavailable}, // overload
		{api(404, 10059), bus.ErrUnavailable}, // being made anew
		{nats.ErrNoResponders, bus.ErrUnavailable},
		{nats.ErrTimeout, bus.ErrUnavailable},
		{api(400, codeMessageTooLarge), nil},
		{api(400, 10070), nil},
		{nats.ErrMaxPayload, nil},
		{nats.ErrBadSubject, nil},
	} {
		got := mapError(t.Context(), "write", c.err)
		for _, k := range kinds {
			if errors.Is(got, k) != errors.Is(c.want, k) {
				t.Errorf("%v became %v, want %v", c.err, got, c.want)
			}
		}
	}
}
