package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/testkit"
)

type settings struct {
	SavesDir string        `koanf:"saves_dir"`
	Fence    time.Duration `koanf:"fence"`
	Alone    bool          `koanf:"alone"`
	Keep     int           `koanf:"keep"`
	Secret   string        `koanf:"secret"`
}

func (s settings) Validate() error {
	if s.Fence <= 0 {
		return errors.New("fence must be above 0; use 10m")
	}
	return nil
}

// trial is a program whose work is to tell what it was given.
type trial struct {
	Program[settings]
	got   settings
	conns int
	own   string
}

func newTrial(roles ...bus.Role) *trial {
	t := &trial{}
	t.Program = Program[settings]{
		Name: "weft-trial", About: "weft-trial tries.", Examples: "weft-trial --fence 1m",
		Defaults: settings{Fence: 10 * time.Minute, Keep: 3},
		Help:     map[string]string{"saves_dir": "root of the saves", "fence": "how long", "alone": "lead at once", "keep": "how many"},
		Flags:    func(fs *flag.FlagSet) { fs.StringVar(&t.own, "simulate", "", "simulate a `profile`") },
		Settle: func(c *settings, o Options) error {
			if c.SavesDir == "" {
				c.SavesDir = filepath.Join(o.Data, "saves")
			}
			return nil
		},
		Roles: func(settings) []bus.Role { return roles },
		Serve: func(_ context.Context, c settings, b *Bus) error {
			t.got, t.conns = c, len(b.conns)
			return nil
		},
	}
	return t
}

func (tr *trial) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = tr.Program.run(t.Context(), args, &out, &errOut, func(*slog.Logger) {})
	return code, out.String(), errOut.String()
}

// users writes a file of the bus's users.
func users(t *testing.T, dir string, passwords map[bus.Role]string) string {
	t.Helper()
	file := CredentialsIn(dir)
	b, err := json.Marshal(passwords)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLayersOfSettings(t *testing.T) {
	dir := t.TempDir()
	users(t, dir, nil)
	file := filepath.Join(dir, "trial.yaml")
	if err := os.WriteFile(file, []byte("keep: 5\nfence: 5m\nalone: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_FENCE", "6m")
	t.Setenv("WEFT_DATA", dir)
	tr := newTrial()
	if code, _, errOut := tr.run(t, "--config", file, "--keep", "7", "--simulate", "a100"); code != exitOK {
		t.Fatalf("%d: %s", code, errOut)
	}
	want := settings{SavesDir: filepath.Join(dir, "saves"), Fence: 6 * time.Minute, Alone: true, Keep: 7}
	if tr.got != want || tr.own != "a100" {
		t.Fatalf("got %+v and %q, want %+v", tr.got, tr.own, want)
	}
	// A flag mends what is wrong below it, since only the result is validated.
	t.Setenv("WEFT_FENCE", "0s")
	if code, _, errOut := tr.run(t, "--fence=1m", "--alone=false"); code != exitOK || tr.got.Fence != time.Minute || tr.got.Alone {
		t.Fatalf("%d: %s; %+v", code, errOut, tr.got)
	}
}

// Each mistake is one line that names the cure.
func TestMistakes(t *testing.T) {
	b := testkit.Bus(t)
	good := map[bus.Role]string{}
	for _, r := range []bus.Role{bus.RoleCore, bus.RoleNodes} {
		_, pw, err := b.Server.Credentials(r)
		if err != nil {
			t.Fatal(err)
		}
		good[r] = pw
	}
	dir, wrong, partial := t.TempDir(), t.TempDir(), t.TempDir()
	users(t, dir, good)
	users(t, wrong, map[bus.Role]string{bus.RoleCore: "x", bus.RoleNodes: "y"})
	users(t, partial, map[bus.Role]string{bus.RoleCore: good[bus.RoleCore]})
	damaged := filepath.Join(dir, "damaged.json")
	if err := os.WriteFile(damaged, []byte("core: x"), 0o600); err != nil {
		t.Fatal(err)
	}
	bare, err := bus.StartServer(bus.ServerConfig{Dir: filepath.Join(t.TempDir(), "bus")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bare.Shutdown)
	unprepared := map[bus.Role]string{}
	for _, r := range []bus.Role{bus.RoleCore, bus.RoleNodes} {
		_, unprepared[r], _ = bare.Credentials(r)
	}
	noStreams := t.TempDir()
	users(t, noStreams, unprepared)

	url := b.Server.URL()
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"unknown flag", []string{"--fense", "1m"}, exitUsage, []string{"-fense", "weft-trial --help"}},
		{"a setting without help is no flag", []string{"--secret", "x"}, exitUsage, []string{"-secret"}},
		{"argument", []string{"serve"}, exitUsage, []string{`"serve" is no flag`, "weft-trial --help"}},
		{"bad duration", []string{"--fence", "soon"}, exitUsage, []string{`"soon"`, "-fence", "write a duration such as 15s"}},
		{"bad number", []string{"--keep", "many"}, exitUsage, []string{`"many"`, "-keep", "write a whole number"}},
		{"bad switch", []string{"--alone=perhaps"}, exitUsage, []string{"-alone", "write true or false"}},
		{"refused setting", []string{"--fence", "0s"}, exitUsage, []string{"fence must be above 0; use 10m"}},
		{"log level", []string{"--log-level", "loud"}, exitUsage, []string{"use debug, info, warn or error"}},
		{"no settings file", []string{"--config", "/none.yaml"}, exitUsage, []string{"/none.yaml does not exist"}},
		{"no credentials", []string{"--data", "/none"}, exitUsage, []string{"/none/bus/bus-users.json", "--credentials", "weft bus serve"}},
		{"damaged credentials", []string{"--credentials", damaged}, exitUsage, []string{damaged, "no file of the bus's users"}},
		{"a user is missing", []string{"--nats", url, "--data", partial}, exitUsage, []string{"no password of the bus user nodes"}},
		{"nobody answers", []string{"--nats", "nats://127.0.0.1:1", "--data", dir}, exitUnavailable, []string{"nats://127.0.0.1:1", "weft bus serve", "--nats"}},
		{"wrong password", []string{"--nats", url, "--data", wrong}, exitUnavailable, []string{"refused user \"core\"", "--credentials FILE"}},
		{"no streams", []string{"--nats", bare.URL(), "--data", noStreams}, exitUnavailable, []string{"does not exist", "weft bus init", "more)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errOut := newTrial(bus.RoleCore, bus.RoleNodes).run(t, c.args...)
			if code != c.code || out != "" || strings.Count(errOut, "\n") != 1 || !strings.HasPrefix(errOut, "weft-trial: ") {
				t.Fatalf("exit %d, want %d; stdout %q, stderr %q", code, c.code, out, errOut)
			}
			for _, w := range c.want {
				if !strings.Contains(errOut, w) {
					t.Errorf("%q lacks %q", errOut, w)
				}
			}
		})
	}
	tr := newTrial(bus.RoleCore, bus.RoleNodes)
	if code, _, errOut := tr.run(t, "--nats", url, "--data", dir); code != exitOK || tr.conns != 2 {
		t.Fatalf("with all in order: exit %d, %d connections, %s", code, tr.conns, errOut)
	}
}

func TestExitCodeTellsHowTheServiceEnded(t *testing.T) {
	t.Setenv("WEFT_DATA", t.TempDir())
	users(t, os.Getenv("WEFT_DATA"), nil)
	for _, c := range []struct {
		err  error
		code int
	}{{nil, exitOK}, {context.Canceled, exitOK}, {errors.New("lost"), exitFailed}} {
		tr := newTrial()
		tr.Serve = func(context.Context, settings, *Bus) error { return c.err }
		if code, _, errOut := tr.run(t); code != c.code || (code != 0) != strings.Contains(errOut, "weft-trial: ") {
			t.Errorf("%v: exit %d, %s", c.err, code, errOut)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	code, out, errOut := newTrial().run(t, "--help")
	if code != exitOK || errOut != "" {
		t.Fatalf("exit %d, %s", code, errOut)
	}
	for _, want := range []string{
		"weft-trial tries.", "--nats URL", "(default " + DefaultNATS + ")", "--credentials file", "--fence duration", "(default 10m)",
		"--alone ", "--keep number", "--simulate profile", "weft-trial --fence 1m", "Exit codes",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("help lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "secret") {
		t.Error("help shows a setting that is no flag")
	}
	if code, out, _ := newTrial().run(t, "--version"); code != exitOK || out != "weft-trial "+Version()+"\n" {
		t.Errorf("--version: %d %q", code, out)
	}
}
