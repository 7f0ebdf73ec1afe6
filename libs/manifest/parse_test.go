package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
)

// TestHostileRecords changes one thing in a record that holds.
func TestHostileRecords(t *testing.T) {
	file := func(change func(f map[string]any)) func(r map[string]any) {
		return func(r map[string]any) { change(r["files"].([]any)[0].(map[string]any)) }
	}
	set := func(key string, v any) func(r map[string]any) { return func(r map[string]any) { r[key] = v } }
	name := func(n string) func(r map[string]any) { return file(func(f map[string]any) { f["name"] = n }) }
	cases := map[string]struct {
		change func(r map[string]any)
		why    string
	}{
		"later version":     {set("weft_part", 2), "version 2"},
		"unknown class":     {set("class", "best"), "neither light nor full"},
		"short id":          {set("id", "00"), "hexadecimal"},
		"upper case id":     {set("id", strings.Repeat("0A", 16)), "hexadecimal"},
		"tenant leads out":  {set("tenant", ".."), "tenant"},
		"job leads out":     {set("job", "../../etc"), "job"},
		"no job":            {set("job", ""), "job"},
		"node":              {set("node", "N_1"), "node"},
		"save leads out":    {set("save", "../a1-s000000000007-full"), "no name of a save"},
		"another step":      {set("step", 8), "says attempt"},
		"another attempt":   {set("attempt", 2), "says attempt"},
		"another class":     {set("class", "light"), "says attempt"},
		"negative step":     {set("step", -1), ""},
		"fraction":          {set("step", 7.5), ""},
		"rank not declared": {set("rank", 4), "not among the ranks"},
		"huge rank":         {set("rank", 1<<40), ""},
		"declares none":     {set("declared", ""), "no set of ranks"},
		"declares backward": {set("declared", "3-0"), "no set of ranks"},
		"declares twice":    {set("declared", "0-3,3"), "no set of ranks"},
		"declares too many": {set("declared", "0-65536"), "no set of ranks"},
		"declares all":      {set("declared", "0-18446744073709551615"), "no set of ranks"},
		"declares a sign":   {set("declared", "+0-3"), "no set of ranks"},
		"no files":          {set("files", []any{}), "1 to 1000 files"},
		"files are null":    {set("files", nil), "no list"},
		"files are a map":   {set("files", map[string]any{}), "no list"},
		"file is a list":    {set("files", []any{[]any{}}), "object"},
		"tenant is a list":  {set("tenant", []any{"acme"}), "text or a number"},
		"unknown key":       {set("more", 1), "unknown"},
		"key in capitals":   {func(r map[string]any) { r["Rank"] = 1; delete(r, "rank") }, "unknown"},
		"key missing":       {func(r map[string]any) { delete(r, "world_size") }, "missing"},
		"file twice":        {func(r map[string]any) { l := r["files"].([]any); r["files"] = append(l, l[1]) }, "in order, each once"},
		"files unsorted":    {func(r map[string]any) { slices.Reverse(r["files"].([]any)) }, "in order, each once"},
		"too many files":    {func(r map[string]any) { r["files"] = slices.Repeat(r["files"].([]any), 501) }, "more than 1000"},
		"negative size":     {file(func(f map[string]any) { f["bytes"] = -1 }), "-1 bytes"},
		"huge size":         {file(func(f map[string]any) { f["bytes"] = int64(1) << 60 }), "bytes"},
		"no hash":           {file(func(f map[string]any) { f["sha256"] = "" }), "no SHA-256"},
		"short hash":        {file(func(f map[string]any) { f["sha256"] = "00" }), "no SHA-256"},
		"unknown file key":  {file(func(f map[string]any) { f["mode"] = 1 }), "unknown"},
		"file key missing":  {file(func(f map[string]any) { delete(f, "bytes") }), "missing"},
	}
	for i, n := range []string{
		"", ".", "..", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/", "/", "part.json", "a\x00b", "a\nb", "a\\b", "\x7f", "\x1b[2J",
		strings.Repeat("n", 256), strings.Repeat("a/", 256) + "x",
	} {
		cases[fmt.Sprintf("name %d: %.20q", i, n)] = struct {
			change func(r map[string]any)
			why    string
		}{name(n), "may not name a file"}
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			r := record(1, 7, twoFiles)
			c.change(r)
			if _, ref, err := parse(encode(t, r)); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v, %v; want an error that says %q", ref, err, c.why)
			}
		})
	}
	if _, _, err := parse(encode(t, record(1, 7, twoFiles))); err != nil {
		t.Errorf("the record that the cases change: %v", err)
	}
}

// TestHostileText is what no encoder would write.
func TestHostileText(t *testing.T) {
	good := string(encode(t, record(1, 7, twoFiles)))
	for what, text := range map[string]string{
		"key twice":         strings.Replace(good, `"rank":1`, `"rank":0,"rank":1`, 1),
		"file key twice":    strings.Replace(good, `"bytes":`, `"bytes":1,"bytes":`, 1),
		"something follows": good + "{}",
		"a second record":   good + good,
		"a list":            "[" + good + "]",
		"nothing":           "",
		"null":              "null",
		"deep":              strings.Repeat("[", 1<<19),
		"deep files":        strings.Replace(good, `"files":[`, `"files":[`+strings.Repeat("[", 1<<18), 1),
		"bad UTF-8":         strings.Replace(good, "state.bin", "state\xff.bin", 1),
		"half a surrogate":  strings.Replace(good, "state.bin", `state\ud800.bin`, 1),
		"too long":          good + strings.Repeat(" ", maxPartFile),
	} {
		if _, ref, err := parse([]byte(text)); err == nil {
			t.Errorf("%s: %v", what, ref)
		}
	}
	if _, _, err := parse([]byte(good + " \n")); err != nil {
		t.Errorf("white space at the end: %v", err)
	}
}

// TestRanksRoundTrip: whatever set weft.py writes comes back.
func TestRanksRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := map[uint32]bool{}
		for range rapid.IntRange(1, 5).Draw(t, "runs") {
			a := rapid.Uint32Range(0, saveid.MaxRanks-1).Draw(t, "from")
			for r := a; r < min(a+rapid.Uint32Range(1, 50).Draw(t, "length"), saveid.MaxRanks); r++ {
				set[r] = true
			}
		}
		want := slices.Sorted(maps.Keys(set))
		var runs []string
		for i := 0; i < len(want); {
			j := i
			for j+1 < len(want) && want[j+1] == want[j]+1 {
				j++
			}
			if i == j {
				runs = append(runs, fmt.Sprint(want[i]))
			} else {
				runs = append(runs, fmt.Sprintf("%d-%d", want[i], want[j]))
			}
			i = j + 1
		}
		got, err := parseRanks(strings.Join(runs, ","))
		if err != nil || !slices.Equal(got, want) || !saveid.Ranks(got) {
			t.Fatalf("%v became %v, %v", runs, got, err)
		}
	})
}
