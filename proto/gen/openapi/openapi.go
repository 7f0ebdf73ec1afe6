// Package openapi holds the description of the REST API, generated from proto/weft/api.
package openapi

import _ "embed"

// JSON is the OpenAPI 2 document.
//
//go:embed weft.swagger.json
var JSON []byte
