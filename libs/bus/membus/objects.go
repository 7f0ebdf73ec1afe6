package membus

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/libs/bus"
)

// Objects opens a bucket.
func (b *Bus) Objects(bucket string) bus.Objects { return objects{b, bucket} }

type objects struct {
	b      *Bus
	bucket string
}

// with runs f on the bucket's contents.
func (o objects) with(ctx context.Context, f func(m map[string][]byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	if o.b.down {
		return bus.ErrUnavailable
	}
	m := o.b.buckets[o.bucket]
	if m == nil {
		m = map[string][]byte{}
		o.b.buckets[o.bucket] = m
	}
	return f(m)
}

func (o objects) Put(ctx context.Context, name string, r io.Reader) error {
	if err := bus.CheckObjectName(name); err != nil {
		return err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("put %s: %w", name, err)
	}
	return o.with(ctx, func(m map[string][]byte) error { m[name] = data; return nil })
}

func (o objects) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	var data []byte
	err := o.with(ctx, func(m map[string][]byte) error {
		d, ok := m[name]
		if !ok {
			return fmt.Errorf("%w: %s in %s", bus.ErrNotFound, name, o.bucket)
		}
		data = d
		return nil
	})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (o objects) Has(ctx context.Context, name string) (bool, error) {
	var ok bool
	err := o.with(ctx, func(m map[string][]byte) error { _, ok = m[name]; return nil })
	return ok, err
}

func (o objects) List(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	err := o.with(ctx, func(m map[string][]byte) error {
		for n := range m {
			if strings.HasPrefix(n, prefix) {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		return nil
	})
	return names, err
}

func (o objects) Delete(ctx context.Context, name string) error {
	return o.with(ctx, func(m map[string][]byte) error { delete(m, name); return nil })
}
