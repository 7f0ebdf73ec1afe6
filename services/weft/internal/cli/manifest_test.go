package cli

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// Whatever stands in a command or in the environment comes back as it was, as it does on its way to a rank.
func TestManifestsReadBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Texts of programs: few letters, so that their edges meet often.
		text := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.RuneFrom([]rune("a \n\t\r#:-'\"|>{[&*!%@\\\u0085\u2028\ufeff")), 0, 12, -1))
		command := rapid.SliceOfN(text, 1, 4).Draw(t, "command")
		env := rapid.MapOf(rapid.StringMatching(`[A-Z]{1,3}`), text).Draw(t, "env")
		for _, s := range append([]string{}, command...) {
			if strings.ContainsRune(s, 0) {
				t.Skip("no command has a zero byte")
			}
		}
		type spec struct {
			Command []string          `yaml:"command"`
			Env     map[string]string `yaml:"env"`
		}
		in := map[string]any{"spec": map[string]any{"command": command, "env": env}}
		out, err := manifestText(in)
		if err != nil {
			t.Fatal(err)
		}
		check := func(out string) {
			var back map[string]spec
			if err := yaml.Unmarshal([]byte(out), &back); err != nil {
				t.Fatalf("%v in:\n%s", err, out)
			}
			for i, s := range back["spec"].Command {
				if s != command[i] {
					t.Fatalf("argument %d: %q became %q in:\n%s", i, command[i], s, out)
				}
			}
			for k, v := range env {
				if got := back["spec"].Env[k]; got != v {
					t.Fatalf("%s: %q became %q in:\n%s", k, v, got, out)
				}
			}
		}
		check(out)
		again, err := withID("metadata: {}\n"+out, "01jd0000000000000000000000")
		if err != nil {
			t.Fatal(err)
		}
		check(again)
	})
}
