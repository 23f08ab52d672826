module github.com/testcontainers/testcontainers-go/modules/compose

go 1.26.0
