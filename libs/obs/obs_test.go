package obs

import (
	"bytes"
	"strings"
	"testing"
)

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	l, err := NewLogger(&b, LogConfig{Level: "warn", Format: "json"})
	if err != nil {
		t.Fatal(err)
	}
	l.Info("quiet")
	l.Warn("loud", "job", "j1")
	if got := b.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud","job":"j1"`) {
		t.Fatal(got)
	}
	for _, c := range []LogConfig{{Level: "loud", Format: "text"}, {Level: "info", Format: "xml"}} {
		if _, err := NewLogger(&b, c); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Fatalf("%+v: %v", c, err)
		}
	}
}
