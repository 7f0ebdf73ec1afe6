package program

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/libs/config"
	"github.com/weft-fabric/weft/libs/obs"
)

// commandLine is what was typed.
type commandLine struct {
	name, about, examples string

	fs       *flag.FlagSet
	options  Options
	log      obs.LogConfig
	version  bool
	settings []*setting
	shared   map[string]bool
}

func (p *Program[C]) commandLine() *commandLine {
	cl := &commandLine{
		name: p.Name, about: p.About, examples: p.Examples, log: obs.DefaultLogConfig(), shared: map[string]bool{},
		fs: flag.NewFlagSet(p.Name, flag.ContinueOnError),
	}
	cl.fs.SetOutput(io.Discard)
	str := func(dst *string, name, def, usage string) {
		if v := os.Getenv(config.EnvName(name)); v != "" {
			def = v
		}
		cl.fs.StringVar(dst, name, def, usage)
	}
	o := &cl.options
	str(&o.NATS, "nats", DefaultNATS, "`URL` of the bus; of a cluster all of them, with commas")
	str(&o.Data, "data", DefaultData, "`directory` of what this machine keeps: bus/bus-users.json, tokens, saves, run directories")
	str(&o.Credentials, "credentials", "", "`file` of the bus's users and passwords (default: bus/bus-users.json in --data)")
	str(&o.Config, "config", "", "settings `file` (YAML)")
	str(&cl.log.Level, "log-level", cl.log.Level, "debug, info, warn or error")
	str(&cl.log.Format, "log-format", cl.log.Format, "text or json")
	cl.fs.BoolVar(&cl.version, "version", false, "print the version")
	cl.fs.VisitAll(func(f *flag.Flag) { cl.shared[f.Name] = true })
	defaults := p.Defaults
	for _, f := range config.Fields(&defaults) {
		usage := p.Help[f.Key]
		if usage == "" {
			continue
		}
		s := &setting{field: f}
		cl.settings = append(cl.settings, s)
		cl.fs.Var(s, flagName(f.Key), usage)
	}
	if p.Flags != nil {
		p.Flags(cl.fs)
	}
	return cl
}

func (cl *commandLine) parse(args []string) error {
	if err := cl.fs.Parse(args); err != nil {
		return err
	}
	if cl.fs.NArg() > 0 {
		return fmt.Errorf("%q is no flag", cl.fs.Arg(0))
	}
	var err error
	if cl.options.Data, err = filepath.Abs(cl.options.Data); err != nil {
		return err
	}
	if cl.options.Credentials == "" {
		cl.options.Credentials = CredentialsIn(cl.options.Data)
	}
	return nil
}

// over is the settings that were given as flags.
func (cl *commandLine) over() map[string]string {
	out := map[string]string{}
	for _, s := range cl.settings {
		if s.set {
			out[s.field.Key] = s.text
		}
	}
	return out
}

func flagName(key string) string { return strings.NewReplacer("_", "-", ".", "-").Replace(key) }

// setting is a flag made of a field of the settings.
type setting struct {
	field config.Field
	text  string
	set   bool
}

func (s *setting) String() string {
	if s.field.Type == nil { // the flag package asks a zero value
		return ""
	}
	v := fmt.Sprint(s.field.Default)
	if s.field.Type == reflect.TypeFor[time.Duration]() {
		if short, ok := strings.CutSuffix(v, "m0s"); ok { // 10m, not 10m0s
			v = short + "m"
		}
	}
	return strings.Trim(v, "[]")
}

// Set implements flag.Value; it refuses here what the settings would refuse later without knowing of flags.
func (s *setting) Set(text string) (err error) {
	switch t := s.field.Type; {
	case t == reflect.TypeFor[time.Duration]():
		if _, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("write a duration such as 15s or 10m")
		}
	case t.Kind() == reflect.Bool:
		if _, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("write true or false")
		}
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		if _, err = strconv.ParseInt(text, 10, 64); err != nil {
			return fmt.Errorf("write a whole number")
		}
	case t.Kind() == reflect.Float64:
		if _, err = strconv.ParseFloat(text, 64); err != nil {
			return fmt.Errorf("write a number")
		}
	}
	s.text, s.set = text, true
	return nil
}

// IsBoolFlag lets --remote stand for --remote=true.
func (s *setting) IsBoolFlag() bool {
	return s.field.Type != nil && s.field.Type.Kind() == reflect.Bool
}

// kind is the word for a value in --help.
func (s *setting) kind() string {
	switch t := s.field.Type; {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t.Kind() == reflect.Bool:
		return ""
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Slice:
		return "a,b,…"
	}
	return "number"
}

func (cl *commandLine) help(w io.Writer) {
	fmt.Fprintf(w, "%s\n\nusage: %s [flags]\n", strings.TrimSpace(cl.about), cl.name)
	show := func(f *flag.Flag) {
		kind, usage := flag.UnquoteUsage(f)
		if s, ok := f.Value.(*setting); ok {
			kind, usage = s.kind(), f.Usage
		}
		def := ""
		if v := f.DefValue; v != "" && v != "false" && v != "0" && v != "0s" {
			def = " (default " + v + ")"
		}
		fmt.Fprintf(w, "  %-28s %s%s\n", strings.TrimSpace("--"+f.Name+" "+kind), usage, def)
	}
	sections := []struct {
		title string
		in    func(f *flag.Flag) bool
	}{
		{"Flags of every service:", func(f *flag.Flag) bool { return cl.shared[f.Name] }},
		{"Settings:", func(f *flag.Flag) bool { _, ok := f.Value.(*setting); return ok }},
		{"Flags of " + cl.name + ":", func(f *flag.Flag) bool {
			_, ok := f.Value.(*setting)
			return !ok && !cl.shared[f.Name]
		}},
	}
	for _, s := range sections {
		title := "\n" + s.title + "\n"
		cl.fs.VisitAll(func(f *flag.Flag) {
			if s.in(f) {
				fmt.Fprint(w, title)
				title = ""
				show(f)
			}
		})
	}
	fmt.Fprintf(w, `
Each flag is also a variable (--log-level is WEFT_LOG_LEVEL), and each setting also a key of the file that --config names
(--saves-dir is saves_dir). A flag wins over a variable, a variable over the file.

Examples:
%s
Exit codes: 0 ended in order, 1 failed, 2 wrong flag or setting, 5 the bus does not answer or is not prepared.
`, indent(cl.examples))
}

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(s) + "\n") {
		b.WriteString("  " + line)
	}
	return b.String()
}
