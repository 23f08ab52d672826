// Does with custom resources what an API server does, without one: it checks definitions with their
// CEL rules, checks objects by them, fills in defaults, and tracks the managers of fields.
//
// The arguments are files with definitions. It prints what is wrong with each, one line each, and
// then reads JSON objects from standard input, of which it answers each on a line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// A kind in one version, as an API server serves it.
type served struct {
	structural *schema.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
	managers   managedfields.TypeConverter
}

// A manifest, and the stored object that it changes; none if it creates the object.
type request struct {
	Manifest map[string]interface{} `json:"manifest"`
	Before   map[string]interface{} `json:"before"`
}

// What is wrong with a manifest, the object that is stored, and the conflicts of another manager
// that applies the same manifest server-side.
type answer struct {
	Errors   []string               `json:"errors"`
	Stored   map[string]interface{} `json:"stored"`
	Conflict string                 `json:"conflict"`
}

func main() {
	kinds := map[string]*served{}
	for _, name := range os.Args[1:] {
		wrong := []string{}
		for key, kind := range read(name, &wrong) {
			kinds[key] = kind
		}
		print(wrong)
	}
	decoder := json.NewDecoder(os.Stdin)
	for {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		var one request
		// This decoder keeps whole numbers apart from others, as CEL does.
		check(utiljson.Unmarshal(raw, &one))
		object := unstructured.Unstructured{Object: one.Manifest}
		kind, found := kinds[object.GroupVersionKind().String()]
		if !found {
			fail(fmt.Errorf("no definition has %s", object.GroupVersionKind()))
		}
		print(kind.take(object, one.Before))
	}
}

// Reads a definition, and adds what is wrong with it.
func read(name string, wrong *[]string) map[string]*served {
	text, err := os.ReadFile(name)
	check(err)
	given := &apiextensionsv1.CustomResourceDefinition{}
	check(yaml.Unmarshal(text, given))
	scheme := runtime.NewScheme()
	install.Install(scheme)
	scheme.Default(given)
	for _, version := range given.Spec.Versions {
		if version.Storage {
			given.Status.StoredVersions = []string{version.Name}
		}
	}
	internal := &apiextensions.CustomResourceDefinition{}
	check(scheme.Convert(given, internal, nil))
	for _, one := range definitions.ValidateCustomResourceDefinition(context.Background(), internal) {
		*wrong = append(*wrong, one.Error())
	}
	if len(*wrong) > 0 {
		return nil
	}
	kinds := map[string]*served{}
	for _, version := range given.Spec.Versions {
		found, err := apiextensions.GetSchemaForVersion(internal, version.Name)
		check(err)
		structural, err := schema.NewStructural(found.OpenAPIV3Schema)
		check(err)
		validator, _, err := validation.NewSchemaValidator(found.OpenAPIV3Schema)
		check(err)
		api, err := builder.BuildOpenAPIV3(given, version.Name, builder.Options{})
		check(err)
		managers, err := managedfields.NewTypeConverter(api.Components.Schemas, false)
		check(err)
		key := fmt.Sprintf("%s/%s, Kind=%s", given.Spec.Group, version.Name, given.Spec.Names.Kind)
		rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
		kinds[key] = &served{structural, validator, rules, managers}
	}
	return kinds
}

// Stores a manifest as `kubectl apply` does, and applies it server-side as another manager.
func (kind *served) take(manifest unstructured.Unstructured, before map[string]interface{}) answer {
	object := manifest.DeepCopy()
	defaulting.PruneNonNullableNullsWithoutDefaults(object.Object, kind.structural)
	defaulting.Default(object.Object, kind.structural)
	made := answer{Errors: kind.wrong(object.Object, before), Stored: object.Object}
	managers := managedfieldstest.NewTestFieldManager(kind.managers, manifest.GroupVersionKind())
	check(managers.Update(object, "kubectl-client-side-apply"))
	if err := managers.Apply(&manifest, "gitops", false); err != nil {
		made.Conflict = err.Error()
	}
	return made
}

func (kind *served) wrong(object, before map[string]interface{}) []string {
	found := validation.ValidateCustomResource(nil, object, kind.validator)
	ctx := context.Background()
	var old interface{}
	if before != nil {
		old = before
	}
	broken, _ := kind.rules.Validate(ctx, nil, kind.structural, object, old, celconfig.RuntimeCELCostBudget)
	texts := []string{}
	for _, one := range append(found, broken...) {
		texts = append(texts, one.Error())
	}
	return texts
}

func print(value interface{}) {
	text, err := json.Marshal(value)
	check(err)
	fmt.Println(string(text))
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "custom-resources:", err)
	os.Exit(1)
}
