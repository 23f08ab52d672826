// Runs Lua scripts as Argo CD runs those of the ConfigMap argocd-cm. A script has the libraries
// package, base and table, a module os with time and date alone, and one second. The resource is
// the global obj.
//
// Reads JSON objects {"script": ..., "obj": ...} from standard input. Prints for each on a line
// {"value": ...} with the table that the script returned, or {"error": ...}.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

const timeout = time.Second

type call struct {
	Script string `json:"script"`
	Obj    any    `json:"obj"`
}

func main() {
	decoder := json.NewDecoder(os.Stdin)
	encoder := json.NewEncoder(os.Stdout)
	for {
		var next call
		if err := decoder.Decode(&next); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fail(err)
		}
		answer := map[string]any{}
		if value, err := run(next); err != nil {
			answer["error"] = err.Error()
		} else {
			answer["value"] = json.RawMessage(value)
		}
		if err := encoder.Encode(answer); err != nil {
			fail(err)
		}
	}
}

// run returns the table that a script returns, as JSON.
func run(next call) ([]byte, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	libraries := map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	}
	for _, name := range []string{lua.LoadLibName, lua.BaseLibName, lua.TabLibName} {
		state.Push(state.NewFunction(libraries[name]))
		state.Push(lua.LString(name))
		state.Call(1, 0)
	}
	state.PreloadModule(lua.OsLibName, safeOs)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luajson.DecodeValue(state, next.Obj))
	if err := state.DoString(next.Script); err != nil {
		return nil, err
	}
	value := state.Get(-1)
	if value.Type() != lua.LTTable {
		return nil, fmt.Errorf("the script returned a %s instead of a table", value.Type())
	}
	return luajson.Encode(value)
}

// safeOs is the module os without what touches the machine.
func safeOs(state *lua.LState) int {
	whole := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer whole.Close()
	whole.Push(whole.NewFunction(lua.OpenOs))
	whole.Push(lua.LString(lua.OsLibName))
	whole.Call(1, 1)
	module := state.NewTable()
	for _, name := range []string{"time", "date"} {
		function := whole.CheckTable(-1).RawGetString(name).(*lua.LFunction).GFunction
		module.RawSetString(name, state.NewFunction(function))
	}
	state.Push(module)
	return 1
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "argocd-lua:", err)
	os.Exit(1)
}
