"""The entry point of the Spark image: runs a driver, an executor, or the named program.

Spark's scheduler for Kubernetes starts containers with `driver ARGUMENTS` or `executor`, and passes
the rest in environment variables (core/resource-managers of Spark, `Constants.scala`). This module
uses only the standard library and supports what a PySpark application needs.
"""

import os
import sys

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
#: Options of the executor back end and the variables with their values.
EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
JAVA_OPTION = "SPARK_JAVA_OPT_"


def build_driver_command(environment: dict[str, str], arguments: list[str]) -> list[str]:
    address = environment["SPARK_DRIVER_BIND_ADDRESS"]
    return [
        f"{environment['SPARK_HOME']}/bin/spark-submit",
        "--conf",
        f"spark.driver.bindAddress={address}",
        "--conf",
        f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}",
        "--deploy-mode",
        "client",
        *arguments,
    ]


def build_executor_command(environment: dict[str, str]) -> list[str]:
    numbers = sorted(
        int(name.removeprefix(JAVA_OPTION)) for name in environment if name.startswith(JAVA_OPTION)
    )
    home, memory = environment["SPARK_HOME"], environment["SPARK_EXECUTOR_MEMORY"]
    class_path = [
        environment.get("SPARK_CONF_DIR", f"{home}/conf"),
        environment.get("SPARK_CLASSPATH", ""),
        f"{home}/jars/*",
    ]
    options = [word for name, key in EXECUTOR_OPTIONS.items() for word in (name, environment[key])]
    java = environment.get("JAVA_HOME")
    return [
        f"{java}/bin/java" if java else "java",
        *(environment[f"{JAVA_OPTION}{number}"] for number in numbers),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(part for part in class_path if part),
        EXECUTOR,
        *options,
    ]


def build_command(environment: dict[str, str], arguments: list[str]) -> list[str]:
    """Return the program for a container with these arguments and variables."""
    match arguments:
        case ["driver", *rest]:
            return build_driver_command(environment, rest)
        case ["executor", *_]:
            return build_executor_command(environment)
        case []:
            sys.exit("Pass `driver`, `executor` or a program to run.")
    return arguments


if __name__ == "__main__":
    words = build_command(dict(os.environ), sys.argv[1:])
    os.execvp(words[0], words)
