package door

import (
	"encoding/json"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/jobspec"
)

// input is what a pipeline asks, whichever way it wrote it.
type input struct {
	Manifest string
	Bundle   string
	DryRun   bool
	Job      string
	After    uint64
	Limit    int

	traceparent string
}

// fields are those of a plain call; manifest is YAML or JSON text, or the manifest itself as an object.
type fields struct {
	Manifest json.RawMessage `json:"manifest"`
	Bundle   string          `json:"bundle"`
	DryRun   bool            `json:"dry_run"`
	Job      string          `json:"job"`
	After    uint64          `json:"after"`
	Limit    int             `json:"limit"`
}

// maxInput is generous beside the largest manifest, for JSON escapes and the CloudEvent around it.
const maxInput = 4 * jobspec.MaxManifest

// read accepts a CloudEvent in structured mode (one JSON document with its data inside) or binary mode (context in
// ce- headers, which are only looked at, never kept), plain JSON, or a bare manifest.
func read(r bus.Request) (*input, error) {
	if len(r.Data) > maxInput {
		return nil, status.Errorf(codes.InvalidArgument, "message: %d bytes are more than the %d allowed; put data into files that the job ships", len(r.Data), maxInput)
	}
	data := r.Data
	in := &input{traceparent: header(r.Header, "ce-traceparent")}
	if in.traceparent == "" {
		in.traceparent = header(r.Header, "traceparent")
	}
	var probe struct {
		SpecVersion string          `json:"specversion"`
		APIVersion  string          `json:"apiVersion"`
		Traceparent string          `json:"traceparent"`
		Data        json.RawMessage `json:"data"`
	}
	if json.Unmarshal(data, &probe) != nil {
		in.Manifest = string(data) // YAML, or nonsense that the parser names
		return in, nil
	}
	if v := probe.SpecVersion + header(r.Header, "ce-specversion"); v != "" && v != "1.0" {
		return nil, status.Errorf(codes.InvalidArgument, "specversion: %.20q is not known; send CloudEvents 1.0, or plain JSON {\"manifest\": …}", v)
	}
	if probe.SpecVersion != "" {
		if probe.Traceparent != "" {
			in.traceparent = probe.Traceparent
		}
		var text string
		if json.Unmarshal(probe.Data, &text) == nil && text != "" {
			in.Manifest = text
			return in, nil
		}
		data, probe.APIVersion = probe.Data, ""
		if len(data) == 0 || json.Unmarshal(data, &probe) != nil {
			return nil, status.Error(codes.InvalidArgument, "data: is missing; put {\"manifest\": …} into the CloudEvent's data")
		}
	}
	if probe.APIVersion != "" {
		in.Manifest = string(data)
		return in, nil
	}
	var f fields
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "message: %v; send JSON such as {\"manifest\": …}", err)
	}
	in.Bundle, in.DryRun, in.Job, in.After, in.Limit = f.Bundle, f.DryRun, f.Job, f.After, f.Limit
	if json.Unmarshal(f.Manifest, &in.Manifest) != nil {
		in.Manifest = string(f.Manifest)
	}
	return in, nil
}

func header(h map[string]string, name string) string {
	for k, v := range h {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}
