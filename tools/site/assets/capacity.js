// The calculator of docs/capacity.md. Its figures are rows of docs/scaling.md, which a test compares.
"use strict";

const FIGURES = {
  brokerMb: ["an idle broker", 50, "MB"],
  replicaKb: ["a partition's replica", 5.6, "KB"],
  connectionKb: ["a connection, without answers that its client has not read", 2.9, "KB"],
  memberKb: ["a member of a share group", 2.6, "KB"],
  inFlightBytes: ["a share record in flight with other neighbours", 21, "bytes"],
  metadataBytes: ["a partition in the metadata, on every node", 460, "bytes"],
  heartbeatMs: ["its heartbeat", 0.1, "ms"],
  commitMs: ["an individual commit of a share record", 0.1, "ms"],
  oneReplicaS: ["1 GB in, one replica, batches of 1 MB", 2.9, "s"],
  outS: ["1 GB out, batches", 0.44, "s"],
  threeReplicasS: ["1 GB in, three replicas, acks=all, all brokers together", 14, "s"],
};
const HEARTBEAT_INTERVAL_S = 5;
// A core that is busier than this has no room for peaks and restarts.
const CORE_LOAD_MAX = 0.6;
// A volume that is fuller than this leaves no time to react.
const DISK_LOAD_MAX = 0.7;

function capacity(given) {
  const figure = (name) => FIGURES[name][1];
  const mbIn = (given.records * given.size) / 1e6;
  const inS = given.replicas === 1 ? figure("oneReplicaS") : (figure("threeReplicasS") * given.replicas) / 3;
  const cores =
    (mbIn / 1000) * (inS + figure("outS") * given.readers) +
    (given.records * given.commits * figure("commitMs")) / 1000 +
    (given.members * figure("heartbeatMs")) / 1000 / HEARTBEAT_INTERVAL_S;
  const least = given.replicas === 1 ? 1 : 3;
  const brokers = Math.max(least, Math.ceil(cores / CORE_LOAD_MAX));
  const memoryMb =
    figure("brokerMb") +
    (given.partitions * given.replicas * figure("replicaKb")) / 1000 / brokers +
    (given.members * (figure("connectionKb") + figure("memberKb"))) / 1000 +
    (given.inFlight * figure("inFlightBytes")) / 1e6 +
    (given.partitions * figure("metadataBytes")) / 1e6;
  const diskGb = (mbIn * 86.4 * given.days * given.replicas) / brokers / DISK_LOAD_MAX;
  return { brokers, cores, memoryMb, diskGb };
}

function show() {
  const form = document.querySelector("form.capacity");
  if (!form) return;
  const given = Object.fromEntries(
    [...form.querySelectorAll("input")].map((input) => [input.name, Math.max(0, Number(input.value) || 0)]),
  );
  given.replicas = Math.max(1, given.replicas);
  const found = capacity(given);
  // Rounded up, but not for the error of a sum of binary fractions.
  const texts = {
    brokers: `${found.brokers}`,
    cores: `${found.cores.toFixed(2)} of ${found.brokers}`,
    memory: `${Math.ceil(found.memoryMb - 1e-6)} MB`,
    disk: `${Math.ceil(found.diskGb - 1e-6)} GB`,
  };
  for (const [name, text] of Object.entries(texts)) {
    document.querySelector(`[data-capacity="${name}"]`).textContent = text;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector("form.capacity")?.addEventListener("input", show);
  show();
});
