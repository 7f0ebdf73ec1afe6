// Command weft-checkpoint runs the checkpoint service against a bus.
package main

import (
	"context"
	"path/filepath"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/services/checkpoint"
)

func main() {
	program.Main(program.Program[checkpoint.Config]{
		Name:  "weft-checkpoint",
		About: `weft-checkpoint keeps the log of checkpoints: which saves exist, complete and verified, and which one a restarted job reads.`,
		Examples: `weft bus serve                             # a bus for this machine, in another terminal
weft-checkpoint --saves-dir /srv/saves     # every node writes its saves there: read them back, delete old ones
weft-checkpoint --nats nats://10.0.0.1:4222 --data /var/lib/weft`,
		Defaults: checkpoint.DefaultConfig(),
		Help: map[string]string{
			"saves_dir":  "root of the saves, if this process sees the nodes' own; empty = trust the agents' verification and delete nothing",
			"alone":      "no other replica can exist, so lead at once",
			"keep_full":  "committed full saves that a job keeps; 0 = all",
			"keep_light": "committed light saves that a job keeps; 0 = all",
		},
		Settle: func(c *checkpoint.Config, _ program.Options) (err error) {
			if c.Dir != "" {
				c.Dir, err = filepath.Abs(c.Dir)
			}
			return err
		},
		Roles: func(checkpoint.Config) []bus.Role { return []bus.Role{bus.RoleCore, bus.RoleNodes} },
		Serve: serve,
	})
}

func serve(ctx context.Context, cfg checkpoint.Config, b *program.Bus) error {
	deps, closeReaders, err := checkpoint.Connect(ctx, b.Conn(bus.RoleCore), b.Conn(bus.RoleNodes))
	if err != nil {
		return err
	}
	defer closeReaders()
	s, err := checkpoint.New(cfg, deps)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
