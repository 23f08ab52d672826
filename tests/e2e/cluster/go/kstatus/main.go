// Reads JSON objects from standard input and prints the kstatus result of each on a line:
// InProgress, Failed, Current, Terminating, NotFound or Unknown.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	decoder := json.NewDecoder(os.Stdin)
	for {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			fail(err)
		}
		result, err := status.Compute(object)
		if err != nil {
			fail(err)
		}
		fmt.Println(result.Status)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "kstatus:", err)
	os.Exit(1)
}
