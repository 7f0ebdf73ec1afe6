package allinone

import (
	"context"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
)

// Raw is an embedded bus with nothing on it but one stream of the fabric's own configuration: the anchor of benchmarks.
type Raw struct {
	srv  *bus.Embedded
	conn *bus.Conn
	out  bus.Outbox
}

// RawPublisher starts one in dir.
func RawPublisher(ctx context.Context, dir string) (*Raw, error) {
	srv, err := bus.StartServer(bus.ServerConfig{Dir: dir})
	if err != nil {
		return nil, err
	}
	r := &Raw{srv: srv}
	core, err := srv.Conn(ctx, bus.RoleCoreInit)
	if err != nil {
		r.Close()
		return nil, err
	}
	r.conn = core
	nodes, err := srv.Conn(ctx, bus.RoleNodesInit)
	if err != nil {
		r.Close()
		return nil, err
	}
	defer nodes.Close()
	if err := bus.Apply(ctx, core, nodes, bus.ApplyOptions{Replicas: 1}); err != nil {
		r.Close()
		return nil, err
	}
	core.Close()
	if r.conn, err = srv.Conn(ctx, bus.RoleCore); err != nil {
		r.Close()
		return nil, err
	}
	r.out = busnats.NewOutbox(r.conn, bus.StreamRequests)
	return r, nil
}

// Publish stores one message, synced to disk.
func (r *Raw) Publish(ctx context.Context, data []byte) error {
	_, err := r.out.Publish(ctx, bus.Message{Subject: bus.SubjectRequest("bench", "raw"), Data: data})
	return err
}

// Close stops the bus.
func (r *Raw) Close() {
	if r.conn != nil {
		r.conn.Close()
	}
	r.srv.Shutdown()
}
