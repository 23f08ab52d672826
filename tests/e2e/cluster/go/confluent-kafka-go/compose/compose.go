// Package compose has what confluent-kafka-go's tests call of Docker Compose, and starts nothing:
// the tests get the addresses of brokers that run.
package compose

// LocalDockerCompose stands for the containers of a file.
type LocalDockerCompose struct{}

// ExecError is the result of a command.
type ExecError struct{ Error error }

// NewLocalDockerCompose is not called if the tests have the addresses of brokers.
func NewLocalDockerCompose([]string, string) *LocalDockerCompose {
	panic("the tests need brokers that run")
}

// WithCommand returns the containers.
func (c *LocalDockerCompose) WithCommand([]string) *LocalDockerCompose { return c }

// Invoke does nothing.
func (c *LocalDockerCompose) Invoke() ExecError { return ExecError{} }

// Down does nothing.
func (c *LocalDockerCompose) Down() ExecError { return ExecError{} }
