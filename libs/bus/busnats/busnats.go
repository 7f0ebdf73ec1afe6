// Package busnats adapts the ports of bus to NATS JetStream.
package busnats

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
)

// Error codes of JetStream that a writer can act on.
const (
	codeWrongLast         = 10071
	codeWrongLastConstant = 10164
	codeStoreFailed       = 10077 // "maximum bytes exceeded" and the like
	codeNoResources       = 10023 // the server's disk or memory is used up
	codeStorageExceeded   = 10047
	codeMemoryExceeded    = 10028
	codeAccountExceeded   = 10002
	codeMessageTooLarge   = 10054
)

// mapError turns a client error into one that the ports promise. Whatever leaves open whether the message was stored is
// bus.ErrUnavailable. ctx is the one that was used.
func mapError(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), bus.ErrUnavailable) {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode {
		case codeWrongLast, codeWrongLastConstant:
			return fmt.Errorf("%s: %w: %s", what, bus.ErrPosition, api.Description)
		case codeStoreFailed, codeNoResources, codeStorageExceeded, codeMemoryExceeded, codeAccountExceeded:
			return fmt.Errorf("%s: %w: %s", what, bus.ErrFull, api.Description)
		case codeMessageTooLarge:
			return fmt.Errorf("%s: %w", what, err)
		}
		if api.Code >= 400 && api.Code < 500 && api.Code != 404 && api.Code != 408 && api.Code != 429 { // 429: overload
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %w", what, bus.ErrUnavailable, err)
}

func toNATS(m bus.Message) (*nats.Msg, error) {
	out := &nats.Msg{Subject: m.Subject, Data: m.Data}
	if len(m.Header) > 0 {
		out.Header = make(nats.Header, len(m.Header))
		for k, v := range m.Header {
			if err := bus.CheckHeader(k); err != nil {
				return nil, err
			}
			out.Header[k] = []string{v}
		}
	}
	return out, nil
}

func fromHeader(h nats.Header) map[string]string {
	var out map[string]string
	for k, v := range h {
		if len(v) == 0 || bus.CheckHeader(k) != nil {
			continue
		}
		if out == nil {
			out = make(map[string]string, len(h))
		}
		out[k] = v[0]
	}
	return out
}

func same(a, b bus.Message) bool {
	return a.Subject == b.Subject && string(a.Data) == string(b.Data) && maps.Equal(a.Header, b.Header)
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
