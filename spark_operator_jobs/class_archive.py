"""Creates the archive of Spark's classes from which `java.py` starts JVMs, during the image build.

It runs three small applications and lists the classes that their JVMs load: a streaming query over
a Python source with real executors, and the submission and the driver as on Kubernetes, with a fake
API server. The JVM writes the archive from the list (`-Xshare:dump`). Classes that the archive
lacks are read from their jars.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME = Path(os.environ["SPARK_HOME"])
#: Settings of the operator that load additional classes.
CONFS = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.ui.prometheus.enabled": "true",
    "spark.metrics.conf.*.sink.prometheusServlet.class": (
        "org.apache.spark.metrics.sink.PrometheusServlet"
    ),
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
}
ON_KUBERNETES = {
    "spark.kubernetes.driver.pod.excludedFeatureSteps": (
        "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
    ),
    "spark.kubernetes.container.image": "none",
    "spark.kubernetes.submission.waitAppCompletion": "false",
    "spark.scheduler.minRegisteredResourcesRatio": "0",
    "spark.executor.instances": "1",
}
TIMEOUT_S = 300
#: Seconds in which a driver requests its executor.
PAUSE_S = 3


class Nothing(BaseHTTPRequestHandler):
    """An API server that accepts every object and returns none."""

    protocol_version = "HTTP/1.1"

    def _take(self) -> None:
        made = json.loads(self._body() or b"{}")
        meta = made.setdefault("metadata", {})
        meta.setdefault("name", self.path.partition("?")[0].rpartition("/")[2])
        self._say(made | {"metadata": meta | {"uid": "1", "resourceVersion": "1"}})

    do_POST = do_PUT = do_PATCH = _take

    def _body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def do_DELETE(self) -> None:
        self._body() if "Transfer-Encoding" in self.headers else None
        self._say({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def do_GET(self) -> None:
        if "Upgrade" in self.headers or "upgrade" in self.headers.get("Connection", "").lower():
            # The client watches by WebSocket first, and by plain HTTP if there is none.
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if "watch=true" in self.path:
            # No event is sent; the client closes the connection when it ends.
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.rfile.read(1)
            return
        self._say(
            {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"},
                "items": [],
            }
        )

    def _say(self, answer: dict) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def make_source() -> type:
    """Return a streaming source in Python with three batches of one row."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict:
            return {"at": 0}

        def latestOffset(self, start: dict, _limit: object) -> dict:
            return {"at": min(3, start["at"] + 1)}

        def partitions(self, _start: dict, end: dict) -> list:
            return [InputPartition(end["at"])]

        def read(self, _partition: InputPartition):
            import pyarrow

            yield pyarrow.RecordBatch.from_pydict({"value": [b"x"]})

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "few"

        def schema(self) -> str:
            return "value binary"

        # PySpark passes `schema` by name.
        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: ARG002
            return Reader()

    return Source


def run_job(kind: str) -> None:
    """Run the application: the work of a job's driver and executors."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    if kind == "job":

        def work(batch, _number: int) -> None:
            done = batch.mapInPandas(lambda frames: frames, batch.schema)
            done.persist()
            done.count()
            done.write.format("noop").mode("overwrite").save()

        spark.dataSource.register(make_source())
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = spark.readStream.format("few").load().writeStream.foreachBatch(work)
            query = writer.option("checkpointLocation", checkpoint).start()
            while len(query.recentProgress) < 3:
                query.awaitTermination(0.2)
            query.stop()
    else:
        # The executor is requested but never starts.
        threading.Event().wait(PAUSE_S)
    spark.stop()


def submit(lists: str, master: str, confs: dict[str, str], *words: str) -> None:
    settings = [f"--conf={name}={value}" for name, value in (CONFS | confs).items()]
    argv = [HOME / "bin/spark-submit", f"--master={master}", *settings, *words]
    more = {
        "SHOAL_CLASS_LISTS": lists,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "KUBECONFIG": os.devnull,
        "SPARK_WORKER_DIR": lists,
    }
    done = subprocess.run(
        argv,
        env=os.environ | more,
        cwd=lists,
        timeout=TIMEOUT_S,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise OSError(f"{words} at {master}:\n{done.stdout[-8000:]}")


def list_jars() -> list[str]:
    """Return Spark's jars in the order of the class path; its launcher puts slf4j's first."""
    paths = [str(path) for path in sorted((HOME / "jars").glob("*.jar"))]
    return sorted(paths, key=lambda path: not Path(path).name.startswith("slf4j-api"))


def main(archive: Path, path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kubernetes = f"k8s://http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as scratch:
        submit(scratch, "local-cluster[1,1,512]", {}, __file__, "job")
        submit(scratch, kubernetes, ON_KUBERNETES, __file__, "driver")
        cluster = ("--deploy-mode=cluster", f"local://{__file__}", "driver")
        submit(scratch, kubernetes, ON_KUBERNETES, *cluster)
        class_lists = sorted(Path(scratch).glob("*.classes"))
        lines = dict.fromkeys(
            line for each in class_lists for line in each.read_text().splitlines()
        )
        names = Path(scratch, "all")
        names.write_text("".join(f"{line}\n" for line in lines))
        path.write_text(":".join(list_jars()))
        subprocess.run(
            [
                "java",
                "-Xshare:dump",
                f"-XX:SharedClassListFile={names}",
                "-Xlog:cds*=error",
                f"-XX:SharedArchiveFile={archive}",
                "-cp",
                path.read_text(),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
    archive.chmod(0o644)
    print(f"{len(class_lists)} JVMs, {len(lines)} classes, {archive.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [archive, path]:
            try:
                main(Path(archive), Path(path))
            except (OSError, subprocess.SubprocessError) as failed:
                # An image without the archive works; its JVMs only start slower.
                Path(archive).unlink(missing_ok=True)
                print(f"No archive of classes; JVMs start without it: {failed}", file=sys.stderr)
        case [kind]:
            run_job(kind)
