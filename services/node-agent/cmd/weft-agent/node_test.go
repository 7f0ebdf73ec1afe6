package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/libs/config"
	"github.com/weft-fabric/weft/libs/program"
	nodeagent "github.com/weft-fabric/weft/services/node-agent"
)

// A machine without any setting is a node.
func TestSettleFillsInWhatTheMachineKnows(t *testing.T) {
	c, data := nodeagent.DefaultConfig(), t.TempDir()
	if err := settle(&c, program.Options{NATS: "nats://127.0.0.1:7402", Data: data}, "a100-80gx8"); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.Address != "127.0.0.1" || c.Dir != filepath.Join(data, "nodes", c.Node) || c.SavesDir != filepath.Join(data, "saves") || c.CPU != 96_000 {
		t.Errorf("%+v", c)
	}
	several := nodeagent.DefaultConfig()
	if err := settle(&several, program.Options{NATS: "nats://127.0.0.1:7402,nats://127.0.0.2:7402", Data: data}, ""); err != nil || several.Address != "127.0.0.1" {
		t.Errorf("a bus of several servers: address %q, %v", several.Address, err)
	}
	given := c
	if err := settle(&given, program.Options{NATS: "nats://10.0.0.1:1", Data: "/elsewhere"}, ""); err != nil || given != c {
		t.Errorf("what was set was changed: %+v, %v", given, err)
	}
}

func TestSettleNamesTheFlag(t *testing.T) {
	for _, c := range []struct{ nats, simulate, want string }{
		{"somewhere", "", "--nats"},
		{"nats://127.0.0.1:7402", "toaster", "--simulate toaster"},
	} {
		cfg := nodeagent.DefaultConfig()
		if err := settle(&cfg, program.Options{NATS: c.nats, Data: "/d"}, c.simulate); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestEverySettingIsAFlag(t *testing.T) {
	c := nodeagent.DefaultConfig()
	for _, f := range config.Fields(&c) {
		if help[f.Key] == "" {
			t.Errorf("setting %s has no line in --help, and so no flag", f.Key)
		}
	}
}
