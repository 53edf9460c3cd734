package validation

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSchemaIsDocumented: every field of results.json stands in SCHEMA.md, and
// the version is the one that this code writes.
func TestSchemaIsDocumented(t *testing.T) {
	data, err := os.ReadFile("SCHEMA.md")
	require.NoError(t, err)
	doc := string(data)
	require.Contains(t, doc, "# results.json, schema 3")
	require.Equal(t, 3, SchemaVersion)
	seen := make(map[reflect.Type]bool)
	fields := 0
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || typ == reflect.TypeFor[time.Time]() || typ == reflect.TypeFor[Options]() ||
			typ == reflect.TypeFor[ServingRecord]() || typ == reflect.TypeFor[ServingPlan]() {
			return // options are the flags, which -help explains; serving is described where it is made
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				if f.Anonymous {
					visit(f.Type)
				}
				continue
			}
			fields++
			if !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("%s.%s: SCHEMA.md lacks `%s`", typ, f.Name, name)
			}
			visit(f.Type)
		}
	}
	visit(reflect.TypeFor[Results]())
	require.Greater(t, fields, 100)
	for _, name := range []string{ReadingSteal, ReadingWaiting, ReadingClock, ReadingOthers, ReadingLoad} {
		require.Contains(t, doc, "`"+name+"`")
	}
}
