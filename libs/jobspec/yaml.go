package jobspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// parser walks a YAML tree and keeps the first error; after one, every value it returns is zero.
type parser struct {
	err   *Error
	lines map[string]int
	job   bool // a job's manifest: hints about its words make sense
}

func (p *parser) fail(n *yaml.Node, field, format string, args ...any) {
	if p.err != nil {
		return
	}
	line := p.lines[field]
	if n != nil {
		line = n.Line
	}
	p.err = &Error{Field: field, Line: line, Message: fmt.Sprintf(format, args...)}
}

// document parses exactly one YAML (or JSON) document and returns its root.
func (p *parser) document(b []byte) *yaml.Node {
	if len(b) > MaxManifest {
		p.fail(nil, "", "%d bytes are more than the %d allowed; put data into files that the job ships, and name them by spec.files", len(b), MaxManifest)
		return nil
	}
	root, second, err := decode(b)
	if err != nil && json.Valid(b) {
		// JSON may escape characters in ways that YAML does not know; spell them out.
		var v any
		if json.Unmarshal(b, &v) == nil {
			if plain, merr := json.Marshal(v); merr == nil {
				root, second, err = decode(plain)
			}
		}
	}
	switch {
	case errors.Is(err, io.EOF) || err == nil && (len(root.Content) == 0 || root.Content[0].ShortTag() == "!!null"):
		p.fail(nil, "", "empty; start from an example in deploy/examples, or: weft run -- echo hello")
	case err != nil:
		line, what := yamlError(err)
		p.fail(&yaml.Node{Line: line}, "", "not valid YAML: %s; indent with spaces, and quote values that hold ': ', '#' or braces", what)
	case second != 0:
		p.fail(&yaml.Node{Line: second}, "", "a second document begins; put each job into a file of its own")
	default:
		return root.Content[0]
	}
	return nil
}

// decode returns the first document, and the line of the second if there is one.
func decode(b []byte) (root *yaml.Node, second int, err error) {
	defer func() {
		// The YAML library reports some malformed input by a panic; to the user it is one more syntax error.
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(b))
	root = &yaml.Node{}
	if err := dec.Decode(root); err != nil {
		return root, 0, err
	}
	var more yaml.Node
	switch err := dec.Decode(&more); {
	case errors.Is(err, io.EOF):
		return root, 0, nil
	case err != nil:
		return root, 0, err
	}
	return root, max(more.Line, 1), nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// yamlError splits the library's message into a line and one line of text.
func yamlError(err error) (int, string) {
	msg := strings.Join(strings.Fields(err.Error()), " ")
	m := yamlLine.FindStringSubmatch(msg)
	if m == nil {
		return 0, msg
	}
	line, _ := strconv.Atoi(m[1])
	return line, msg[len(m[0]):]
}

// object is one mapping with its known fields.
type object struct {
	p      *parser
	path   string
	node   *yaml.Node
	values map[string]*yaml.Node
}

// object reads a mapping that may have these fields and no others.
func (p *parser) object(n *yaml.Node, path string, fields ...string) object {
	o := object{p: p, path: path, node: n, values: map[string]*yaml.Node{}}
	p.pairs(n, path, func(key string, k, v *yaml.Node) {
		full := join(path, key)
		if !slices.Contains(fields, key) {
			p.fail(k, full, "unknown field; %s", p.suggestField(path, key, fields))
			return
		}
		p.lines[full] = k.Line
		if v.ShortTag() == "!!null" {
			p.fail(k, full, "has no value; write one, or leave the field out for its default")
			return
		}
		o.values[key] = v
	})
	return o
}

// pairs calls f for each entry of a mapping, in order, and refuses repeated keys.
func (p *parser) pairs(n *yaml.Node, path string, f func(key string, k, v *yaml.Node)) {
	if p.err != nil || n == nil {
		return
	}
	if n.Kind == yaml.AliasNode {
		p.alias(n, path)
		return
	}
	if n.Kind != yaml.MappingNode {
		p.fail(n, path, "must be a mapping of fields, not %s; write them as 'name: value' lines below it", kindName(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge":
			p.fail(k, path, "has a key that is not a plain word; write each field out")
		case seen[k.Value]:
			p.fail(k, join(path, k.Value), "appears twice; keep one of them")
		case v.Kind == yaml.AliasNode:
			p.alias(v, join(path, k.Value))
		}
		if p.err != nil {
			return
		}
		seen[k.Value] = true
		if f(k.Value, k, v); p.err != nil {
			return
		}
	}
}

func (p *parser) alias(n *yaml.Node, path string) {
	p.fail(n, path, "YAML aliases are not read; write the value out")
}

func (o object) has(key string) bool { return o.p.err == nil && o.values[key] != nil }

func (o object) at(key string) (n *yaml.Node, path string) { return o.values[key], join(o.path, key) }

// items calls f for each element of a list.
func (p *parser) items(n *yaml.Node, path, cure string, f func(i int, v *yaml.Node, path string)) {
	if p.err != nil || n == nil {
		return
	}
	if n.Kind != yaml.SequenceNode {
		p.fail(n, path, "must be a list, not %s; %s", kindName(n), cure)
		return
	}
	for i, v := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if v.Kind == yaml.AliasNode {
			p.alias(v, at)
		}
		if p.err != nil {
			return
		}
		f(i, v, at)
	}
}

// text returns a scalar as it is written; numbers and booleans are text too, so that `--epochs, 10` means what it says.
func (p *parser) text(n *yaml.Node, path string) string {
	switch {
	case p.err != nil || n == nil:
		return ""
	case n.Kind != yaml.ScalarNode:
		p.fail(n, path, "must be one value, not %s; put it into quotes if it is text", kindName(n))
		return ""
	case n.ShortTag() == "!!null":
		p.fail(n, path, "has no value; write one, or leave the entry out (an empty text is \"\")")
		return ""
	case n.ShortTag() == "!!binary":
		p.fail(n, path, "is binary; put binary data into a file that the job ships")
		return ""
	case strings.ContainsRune(n.Value, 0):
		p.fail(n, path, "holds a NUL character, which no program can receive; take it out")
		return ""
	}
	return n.Value
}

// word is a text without surprises: not empty, no control characters.
func (p *parser) word(n *yaml.Node, path string, most int) string {
	s := p.text(n, path)
	switch {
	case p.err != nil:
	case s == "":
		p.fail(n, path, "is empty; write a value, or leave the field out")
	case len(s) > most:
		p.fail(n, path, "is %d characters long; at most %d are allowed", len(s), most)
	case strings.IndexFunc(s, unicode.IsControl) >= 0:
		p.fail(n, path, "holds a control character; take it out")
	default:
		return s
	}
	return ""
}

func (p *parser) integer(n *yaml.Node, path string, lo, hi int64) int64 {
	s := p.text(n, path)
	if p.err != nil {
		return 0
	}
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		p.fail(n, path, "%q is not a whole number; write one from %d to %d", clip(s), lo, hi)
	case v < lo || v > hi:
		p.fail(n, path, "%d is out of range; write a whole number from %d to %d", v, lo, hi)
	default:
		return v
	}
	return 0
}

func (p *parser) boolean(n *yaml.Node, path string) bool {
	switch s := p.text(n, path); {
	case p.err != nil:
	case s == "true":
		return true
	case s == "false":
	default:
		p.fail(n, path, "%q is not a truth value; write true or false", clip(s))
	}
	return false
}

// enum returns the index of a word in a list.
func (p *parser) enum(n *yaml.Node, path string, words ...string) int {
	s := p.text(n, path)
	if p.err != nil {
		return 0
	}
	i := slices.Index(words, s)
	if i < 0 {
		built := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return slices.Contains(notBuilt, w) })
		cure := didYouMean(s, built)
		if cure == "" {
			cure = "write one of " + strings.Join(built, ", ")
		}
		p.fail(n, path, "%q is not known; %s", clip(s), cure)
		return 0
	}
	return i
}

func join(path, key string) string {
	key = clip(key)
	if path == "" {
		return key
	}
	return path + "." + key
}

// clip keeps a quoted piece of the manifest on one short line.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 40 {
		return string(r[:39]) + "…"
	}
	return s
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// suggestField says what to write in place of an unknown field.
func (p *parser) suggestField(path, key string, fields []string) string {
	full, known := misplaced[key]
	hint, foreign := elsewhere[key]
	switch m := didYouMean(key, fields); {
	case p.job && known && full != join(path, key):
		return "it is " + full
	case p.job && foreign:
		return hint
	case m != "":
		return m
	}
	where := path
	if where == "" {
		where = "a manifest"
	}
	return where + " has: " + strings.Join(fields, ", ")
}

// didYouMean returns "did you mean x?" if one of words is close to s.
func didYouMean(s string, words []string) string {
	best, dist := "", 3
	if len(s) <= 3 {
		dist = 2
	}
	low := strings.ToLower(strings.ReplaceAll(s, "-", "_"))
	for _, w := range words {
		if d := distance(low, w); d < dist {
			best, dist = w, d
		}
	}
	if best == "" {
		for _, w := range words {
			if len(low) >= 4 && (strings.HasPrefix(w, low) || strings.HasPrefix(low, w) && len(w) >= 4) {
				best = w
				break
			}
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

// distance is the edit distance with transpositions (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
