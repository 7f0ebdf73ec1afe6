package cli

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// manifestText writes v as YAML that reads back as v. It is made of the kinds that JSON has, and of lists and maps of texts.
func manifestText(v any) (string, error) {
	n, err := node(v)
	if err != nil {
		return "", err
	}
	return nodeText(n)
}

func nodeText(n *yaml.Node) (string, error) {
	quoteAwkward(n)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	if err := enc.Encode(n); err != nil {
		return "", err
	}
	err := enc.Close()
	return b.String(), err
}

// node is not yaml.Node.Encode, which goes through the text that quoteAwkward is there to avoid.
func node(v any) (*yaml.Node, error) {
	n := &yaml.Node{}
	add := func(v any) error {
		c, err := node(v)
		n.Content = append(n.Content, c)
		return err
	}
	switch v := v.(type) {
	case string:
		n.SetString(v)
	case []string:
		n.Kind = yaml.SequenceNode
		for _, e := range v {
			_ = add(e) // a text cannot fail
		}
	case []any:
		n.Kind = yaml.SequenceNode
		for _, e := range v {
			if err := add(e); err != nil {
				return nil, err
			}
		}
	case map[string]string:
		n.Kind = yaml.MappingNode
		for _, k := range slices.Sorted(maps.Keys(v)) {
			_, _ = add(k), add(v[k])
		}
	case map[string]any:
		n.Kind = yaml.MappingNode
		for _, k := range slices.Sorted(maps.Keys(v)) {
			_ = add(k)
			if err := add(v[k]); err != nil {
				return nil, err
			}
		}
	default:
		return n, n.Encode(v)
	}
	return n, nil
}

// quoteAwkward puts texts into double quotes that the encoder would write as blocks and get wrong: it miscounts the
// indentation of a block that begins with white space, as a program given by python3 -c does.
func quoteAwkward(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "\n") && strings.TrimSpace(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		quoteAwkward(c)
	}
}
