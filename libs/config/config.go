// Package config loads a service's settings in three layers: the defaults that stand in the struct, a YAML file, and
// environment variables. It owns the order and the names; what a value means is its service's matter (Validate).
//
// A field tagged `koanf:"silent"` of a struct tagged `koanf:"policy"` is policy.silent in the file, and
// WEFT_POLICY_SILENT in the environment. Durations are written as 15s, lists in the environment as a,b. A key of the
// file that no field has is an error.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
)

const (
	tag    = "koanf"
	prefix = "WEFT_"
)

// Validator is a settings struct that can say what is wrong with it.
type Validator interface{ Validate() error }

// Read lays the file (path "" = none) and the environment over the defaults in dst, a pointer to a struct. It does not
// validate: whoever calls may fill in first what the settings left open. over maps keys to texts that win over file and
// environment: the flags of a command line.
func Read(dst any, path string, over map[string]string) error {
	return read(dst, path, func() []string {
		environ := os.Environ()
		for key, text := range over {
			environ = append(environ, EnvName(key)+"="+text) // of two of one name the later counts
		}
		return environ
	})
}

// Field is one setting of a struct.
type Field struct {
	Key     string // in a file
	Type    reflect.Type
	Default any
}

// Fields lists the settings in the order of the struct.
func Fields(dst any) []Field {
	var list func(v reflect.Value, path string) []Field
	list = func(v reflect.Value, path string) (out []Field) {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name := f.Tag.Get(tag)
			switch {
			case name == "" || name == "-":
			case f.Type.Kind() == reflect.Struct:
				out = append(out, list(v.Field(i), path+name+".")...)
			default:
				out = append(out, Field{Key: path + name, Type: f.Type, Default: v.Field(i).Interface()})
			}
		}
		return out
	}
	return list(reflect.ValueOf(dst).Elem(), "")
}

// EnvName is the variable of a key.
func EnvName(key string) string {
	return prefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

func read(dst any, path string, environ func() []string) error {
	k := koanf.New(".")
	keys, lists := map[string]string{}, map[string]bool{}
	collect(reflect.TypeOf(dst).Elem(), "", keys, lists)
	if path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("settings file %s does not exist", path)
			}
			return fmt.Errorf("settings file %s: %w", path, err)
		}
		if err := unknown(k, keys); err != nil {
			return fmt.Errorf("settings file %s: %w", path, err)
		}
	}
	vars := env.Provider(".", env.Opt{
		Prefix:      prefix,
		EnvironFunc: environ,
		TransformFunc: func(name, value string) (string, any) {
			key := keys[name] // "" = not ours, passed over: ranks and scripts have WEFT_ variables of their own
			if lists[key] {
				return key, strings.Split(value, ",")
			}
			return key, value
		},
	})
	if err := k.Load(vars, nil); err != nil {
		return fmt.Errorf("settings in the environment: %w", err)
	}
	if err := k.UnmarshalWithConf("", dst, koanf.UnmarshalConf{Tag: tag}); err != nil {
		return fmt.Errorf("settings: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}

// unknown refuses keys that no field has.
func unknown(k *koanf.Koanf, keys map[string]string) error {
	var known []string
	for _, key := range keys {
		known = append(known, key)
	}
	slices.Sort(known)
	for _, key := range k.Keys() {
		of := func(field string) bool { return key == field || strings.HasPrefix(key, field+".") } // a field may be a map
		if !slices.ContainsFunc(known, of) {
			return fmt.Errorf("unknown key %s; there are %s", key, strings.Join(known, ", "))
		}
	}
	return nil
}

// collect maps the name of each field's variable to its key, and notes which are lists.
func collect(t reflect.Type, path string, out map[string]string, lists map[string]bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get(tag)
		if name == "" || name == "-" {
			continue
		}
		key := name
		if path != "" {
			key = path + "." + name
		}
		if f.Type.Kind() == reflect.Struct {
			collect(f.Type, key, out, lists)
			continue
		}
		out[EnvName(key)] = key
		lists[key] = f.Type.Kind() == reflect.Slice
	}
}
