// Package proto holds the description of the REST API that its generated packages serve.
package proto

import _ "embed"

// OpenAPI is the OpenAPI 2 document, generated from weft/api.
//
//go:embed gen/openapi/weft.swagger.json
var OpenAPI []byte
