package docs

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

var update = flag.Bool("update", false, "rewrite the generated page")

const (
	root = "../../../../"
	page = root + "docs/events.md"
)

// docs/events.md is generated from the comments of fact.proto, so that it cannot say anything else.
func TestDocsEvents(t *testing.T) {
	buf, err := exec.LookPath("buf")
	if err != nil {
		t.Skip("buf is not on the path; make check has it there")
	}
	cmd := exec.Command(buf, "build", "-o", "-#format=binpb")
	cmd.Dir = root + "proto"
	image, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(image, &set); err != nil {
		t.Fatal(err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		t.Fatal(err)
	}
	fact, err := files.FindFileByPath("weft/v1/fact.proto")
	if err != nil {
		t.Fatal(err)
	}
	want := render(fact)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != want {
		t.Fatalf("docs/events.md is stale (%v); run: make generate", err)
	}
}

func render(f protoreflect.FileDescriptor) string {
	var b strings.Builder
	b.WriteString(`# Events

<!-- generated from proto/weft/v1/fact.proto by make generate; do not edit -->

Every fact of the ledger goes out as one CloudEvents 1.0 message, on the stream EVENTS, by ` + "`weft events -o json`" + `,
` + "`GET /v1/events`" + ` and gRPC ` + "`WatchEvents`" + `. ` + "`data`" + ` is the fact as JSON (field names as below); times are Unix
nanoseconds, amounts of accelerators thousandths of a card. The order is the ledger's; ` + "`weftcursor`" + ` continues a feed
exactly after the event that carried it. Facts that belong to no tenant go out under the tenant ` + "`cell`" + `.

`)
	facts := f.Messages().ByName("Fact").Oneofs().ByName("kind").Fields()
	b.WriteString("| type | fact | meaning |\n|---|---|---|\n")
	for i := range facts.Len() {
		m := facts.Get(i).Message()
		fmt.Fprintf(&b, "| `%s` | [%s](#%s) | %s |\n", lifecycle.EventType(string(facts.Get(i).Name())), m.Name(), strings.ToLower(string(m.Name())), comment(f, m))
	}
	for i := range facts.Len() {
		m := facts.Get(i).Message()
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", m.Name(), comment(f, m))
		fields(&b, f, m)
	}
	b.WriteString("\n# Parts of events\n")
	for i := range f.Messages().Len() {
		m := f.Messages().Get(i)
		if m.Name() == "Fact" || isFact(facts, m) {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", m.Name(), comment(f, m))
		fields(&b, f, m)
	}
	for i := range f.Enums().Len() {
		e := f.Enums().Get(i)
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", e.Name(), comment(f, e))
		for j := 1; j < e.Values().Len(); j++ {
			fmt.Fprintf(&b, "- `%s`\n", e.Values().Get(j).Name())
		}
	}
	return b.String()
}

func isFact(facts protoreflect.FieldDescriptors, m protoreflect.MessageDescriptor) bool {
	for i := range facts.Len() {
		if facts.Get(i).Message().FullName() == m.FullName() {
			return true
		}
	}
	return false
}

func fields(b *strings.Builder, f protoreflect.FileDescriptor, m protoreflect.MessageDescriptor) {
	if m.Fields().Len() == 0 {
		return
	}
	b.WriteString("\n| field | type | |\n|---|---|---|\n")
	for i := range m.Fields().Len() {
		fd := m.Fields().Get(i)
		typ := fd.Kind().String()
		switch {
		case fd.Message() != nil:
			typ = string(fd.Message().Name())
		case fd.Enum() != nil:
			typ = string(fd.Enum().Name())
		}
		if fd.IsList() {
			typ = "list of " + typ
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", fd.Name(), typ, comment(f, fd))
	}
}

// comment is the leading comment of a declaration, on one line.
func comment(f protoreflect.FileDescriptor, d protoreflect.Descriptor) string {
	s := f.SourceLocations().ByDescriptor(d).LeadingComments
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", "\\|")
}
