// Package config loads a service's settings: defaults in the struct, then a YAML file, then environment variables.
package config
