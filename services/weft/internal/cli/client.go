package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/weft/allinone"
)

// client is one connection to the gateway.
type client struct {
	apiv1.JobServiceClient
	apiv1.CellServiceClient
	conn *grpc.ClientConn
}

func (c *client) close() { _ = c.conn.Close() }

// bearer puts the token on each call. The door is loopback or behind TLS ended elsewhere.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

// readContext finds address and token.
func (a *app) readContext() (*allinone.Context, error) {
	file := a.contextFile
	if file == "" {
		file = os.Getenv("WEFT_CONTEXT")
	}
	if file == "" {
		file = filepath.Join(allinone.DefaultDir(), allinone.ContextFile)
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &exitError{ExitUnavailable, fmt.Errorf("no context at %s: no fabric was started here; start one with: weft up (or name one: --context FILE)", file)}
	}
	if err != nil {
		return nil, &exitError{ExitDenied, fmt.Errorf("context: %w; use the account that ran weft up, or --context FILE", err)}
	}
	var c allinone.Context
	if err := json.Unmarshal(b, &c); err != nil || c.GRPC == "" {
		return nil, usagef("context %s is not one that weft up writes (it needs grpc, rest and token); start the fabric again or name another with --context FILE", file)
	}
	return &c, nil
}

func (a *app) connect() (*client, error) {
	c, err := a.readContext()
	if err != nil {
		return nil, err
	}
	return dial(*c)
}

// dial opens a connection to a fabric's door.
func dial(c allinone.Context) (*client, error) {
	conn, err := grpc.NewClient("passthrough:///"+c.GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearer(c.Token)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &client{apiv1.NewJobServiceClient(conn), apiv1.NewCellServiceClient(conn), conn}, nil
}

// callTimeout bounds one ordinary call; the gateway itself waits at most 5 s for a decision.
const callTimeout = 15 * time.Second

// with connects, runs f under the call timeout, and closes.
func (a *app) with(ctx context.Context, f func(ctx context.Context, c *client) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx, c)
}

// stream connects and runs f without a time limit.
func (a *app) stream(ctx context.Context, f func(ctx context.Context, c *client) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.close()
	return f(ctx, c)
}

func splitPort(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	return host, port, err
}
