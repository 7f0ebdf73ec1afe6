package libs

import (
	_ "github.com/nats-io/nats.go"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "pgregory.net/rapid"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/zeebo/blake3"
	_ "go.yaml.in/yaml/v3"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/cockroachdb/datadriven"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/protobuf/proto"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/knadh/koanf/v2"
	_ "github.com/knadh/koanf/providers/env/v2"
	_ "github.com/knadh/koanf/providers/file"
	_ "github.com/knadh/koanf/parsers/yaml"
	_ "k8s.io/apimachinery/pkg/api/resource"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
)
