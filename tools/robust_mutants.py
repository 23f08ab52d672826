"""The mends of hostile input and lost files, each undone, with the test that must notice.

Each entry takes one mend out of the product again: it replaces a text, which is there once, by
another one. `mutants.py robust` runs its test against a copy of the tree with that change.
`tests/unit/tools/test_robust_mutants.py` checks by day that all texts and tests are there.
"""

from __future__ import annotations

from typing import NamedTuple

ENGINE, OPERATOR = "broker_image/shoal", "operator/shoal_operator"
SPARK = "spark_operator_jobs/shoal_spark"


class Undone(NamedTuple):
    """A mend that is undone. `rule` says what no longer holds then."""

    rule: str
    path: str
    old: str
    new: str
    test: str


DATA = (
    Undone(
        "readers take header keys that are not UTF-8",
        f"{ENGINE}/record/records.py",
        'key.decode(errors="surrogateescape"), value',
        "key.decode(), value",
        "tests/unit/record/test_accepted_batches.py",
    ),
    Undone(
        "a lost metadata log begins no new cluster",
        f"{ENGINE}/server/broker.py",
        "        self._check_metadata_log()\n\n",
        "\n",
        "tests/wire/test_lost_files.py::test_a_lost_metadata_log_begins_no_new_cluster",
    ),
    Undone(
        "a first start that was interrupted is repeated",
        f"{ENGINE}/server/broker.py",
        "        if begins and not topics:\n            return\n",
        "",
        "tests/wire/test_lost_files.py::test_a_first_start_that_was_interrupted_is_repeated",
    ),
    Undone(
        "logs that the metadata does not know are set aside, and kept",
        f"{ENGINE}/server/replication/partitions.py",
        "renamed.append(self._directory.set_aside(name, index, now_ms))",
        "renamed.append(self._directory.set_aside(name, index, now_ms)); "
        "self._directory.purge(renamed[-1])",
        "tests/wire/test_lost_files.py::"
        "test_logs_that_the_metadata_does_not_know_are_kept_as_strays",
    ),
    Undone(
        "strays are kept for ever by default",
        f"{ENGINE}/server/replication/log_maintenance.py",
        "if kept_ms < 0 or not self.stray_logs:",
        "if not self.stray_logs:",
        "tests/wire/test_lost_files.py",
    ),
    Undone(
        "strays are removed after the configured time",
        f"{ENGINE}/server/replication/log_maintenance.py",
        "self._node.disk.remove(partial(self._directory.purge, path))",
        "pass",
        "tests/wire/test_lost_files.py::test_strays_are_removed_after_the_configured_time",
    ),
    Undone(
        "a lost identity is not invented",
        f"{ENGINE}/log/directory.py",
        "if properties is None and (names := self.find_logs_with_data()):",
        "if properties is None and False and (names := self.find_logs_with_data()):",
        "tests/wire/test_lost_files.py::test_a_lost_identity_is_not_invented",
    ),
    Undone(
        "a damaged identity is named",
        f"{ENGINE}/log/directory.py",
        "if properties is not None and missing:",
        "if False:",
        "tests/wire/test_lost_files.py::test_a_damaged_identity_is_named",
    ),
    Undone(
        "a damaged topic id is named",
        f"{ENGINE}/log/directory.py",
        "        if topic_id is None:\n            raise CorruptLog(\n"
        '                f"{path} is damaged. It has',
        "        if False:\n            raise CorruptLog(\n"
        '                f"{path} is damaged. It has',
        "tests/wire/test_lost_files.py::test_a_damaged_topic_id_is_named_and_its_records_are_kept",
    ),
    Undone(
        "a broker does not follow a controller that returned empty",
        f"{ENGINE}/server/cluster/quorum.py",
        "        if common is None or common >= end:\n            return\n",
        "        return\n",
        "tests/cluster/test_lost_controllers.py::test_a_controller_returns_empty",
    ),
    Undone(
        "a change that a listener could not apply is repeated",
        f"{ENGINE}/server/metadata_cache.py",
        "                    subscription.owed.append(delta)\n",
        "                    pass\n",
        "tests/unit/server/test_metadata_cache.py",
    ),
    Undone(
        "a topic created without room is served when there is some",
        f"{ENGINE}/server/metadata_cache.py",
        "                    subscription.owed.append(delta)\n",
        "                    pass\n",
        "tests/wire/test_disk_trouble.py::"
        "test_a_topic_created_without_room_is_served_when_there_is_some",
    ),
    Undone(
        "health and log tell of a change that is not applied",
        f"{ENGINE}/server/metadata_cache.py",
        "return next((s.reason for s in self._subscriptions if s.owed and s.reason), None)",
        "return None",
        "tests/wire/test_disk_trouble.py::"
        "test_probes_and_health_tell_of_a_partition_that_is_not_served",
    ),
    Undone(
        "the end of the next transaction waits for the markers of the last one",
        f"{ENGINE}/transaction/shard.py",
        "    if transaction.state.is_prepared:\n"
        "        raise ApiError(ErrorCode.concurrent_transactions)\n",
        "    pass\n",
        "tests/unit/transaction/test_answers.py",
    ),
    Undone(
        "a commit after the coordinator's abort is fenced",
        f"{ENGINE}/transaction/shard.py",
        "        raise ApiError(ErrorCode.producer_fenced)\n"
        "    _check_writer(transaction, writer)\n    # An abort",
        "        raise _build_state_error(transaction, writer, committed=committed)\n"
        "    _check_writer(transaction, writer)\n    # An abort",
        "tests/unit/transaction/test_answers.py::"
        "test_a_commit_after_the_coordinators_own_abort_is_fenced",
    ),
)

WORK = (
    Undone(
        "the head of a request for health takes no long time",
        f"{ENGINE}/server/network/health.py",
        '    for line in head.split(b"\\r\\n")[1:]:\n',
        "    import re\n\n"
        '    for _ in range(30):\n        re.search(rb"(?i)bearer\\s*\\s*\\r\\n", head)\n'
        '    for line in head.split(b"\\r\\n")[1:]:\n',
        "tests/unit/server/network/test_bearer_header.py::test_no_head_takes_long",
    ),
    Undone(
        "foreign patterns run in RE2",
        f"{ENGINE}/metadata/patterns.py",
        "        return re2.compile(regex, options)\n",
        "        import re\n\n        return re.compile(regex)\n",
        "tests/unit/security/test_pattern_times.py",
    ),
    Undone(
        "a pattern meets only ids that its user may see",
        f"{ENGINE}/server/handlers/transactions/list_transactions.py",
        "        if not permits(transactional_id):\n            return False\n"
        "        return pattern is None or pattern.fullmatch(transactional_id) is not None\n",
        "        if pattern is not None and pattern.fullmatch(transactional_id) is None:\n"
        "            return False\n        return permits(transactional_id)\n",
        "tests/unit/server/test_list_transactions.py",
    ),
    Undone(
        "a connection that ends keeps no buffer",
        f"{ENGINE}/server/network/connection.py",
        "        self._frame, self._frame_view = None, _scratch_view\n",
        "        self._frame = None\n",
        "tests/wire/test_ended_connections.py",
    ),
    Undone(
        "a step of the selection expands a few megabytes",
        f"{ENGINE}/coordinator/share/record_scanner.py",
        "        self._bytes_left -= size\n",
        "",
        "tests/unit/coordinator/share/test_scan_bounds.py",
    ),
    Undone(
        "a batch that expands further is read in a thread",
        f"{ENGINE}/coordinator/share/record_scanner.py",
        "return STEP_BYTES_MAX if self._is_fresh else max(self._bytes_left, 0)",
        "return 1 << 40",
        "tests/unit/coordinator/share/test_scan_bounds.py",
    ),
    Undone(
        "refused entries are audited in few lines",
        f"{ENGINE}/security/audit.py",
        "if group.logged < SIMILAR_MAX and self._lines < LINES_MAX:",
        "if True:",
        "tests/unit/server/test_audit.py",
    ),
    Undone(
        "requests of many entries are handled in pieces",
        f"{ENGINE}/server/network/pieces.py",
        "        if entries and (\n            request.size",
        "        if False and (\n            request.size",
        "tests/unit/protocol/test_pieces.py",
    ),
    Undone(
        "large bodies are read in slices",
        f"{ENGINE}/protocol/slices.py",
        "        if self._entries_left > 0:\n            return False\n",
        "        return False\n",
        "tests/wire/test_large_bodies.py::test_each_array_is_read_in_slices",
    ),
    Undone(
        "a connection waits for a body that is read in slices",
        f"{ENGINE}/server/network/dispatch.py",
        "peer, received_ns, len(frame), is_in_pieces=True)",
        "peer, received_ns, len(frame))",
        "tests/unit/server/network/test_dispatch.py",
    ),
    Undone(
        "the entries of all arrays of a share request count together",
        f"{ENGINE}/protocol/share.py",
        "        count, at = _read_count(frame, at + 16, _PARTITION_SIZE_MIN, room.entries_left)\n"
        "        room.entries_left -= count\n",
        "        count, at = _read_count(frame, at + 16, _PARTITION_SIZE_MIN, WHOLE_ENTRIES_MAX)\n",
        "tests/wire/test_large_bodies.py::test_entries_of_all_arrays_count_together",
    ),
    Undone(
        "unknown tags of a share request count as entries",
        f"{ENGINE}/protocol/share.py",
        "    room.take_entries(count)\n    for _ in range(count):\n        _, at",
        "    for _ in range(count):\n        _, at",
        "tests/wire/test_large_bodies.py::test_unknown_tags_count_as_entries",
    ),
    Undone(
        "unknown tags of a produce count as entries",
        f"{ENGINE}/protocol/produce.py",
        "    if count > min(TAGS_MAX, entries_left):\n",
        "    if count > TAGS_MAX:\n",
        "tests/wire/test_large_bodies.py::test_unknown_tags_count_as_entries",
    ),
    Undone(
        "a topology is refused beyond some thousand entries",
        f"{ENGINE}/server/handlers/groups/streams_group_heartbeat.py",
        "        topology.check_size(body.topology.subtopologies)\n",
        "",
        "tests/wire/test_streams_groups.py::test_a_topology_that_is_too_large_is_refused",
    ),
    Undone(
        "a streams group has a limited number of tasks",
        f"{ENGINE}/coordinator/group/streams/internal_topics.py",
        "        _check_tasks(configured.values())\n",
        "",
        "tests/unit/coordinator/group/test_large_topologies.py",
    ),
    Undone(
        "a subtopology is visited when a source is known, in the round in which Kafka does",
        f"{ENGINE}/coordinator/group/streams/internal_topics.py",
        "(turn + (reader <= index), reader)",
        "(turn, reader)",
        "tests/unit/coordinator/group/test_large_topologies.py",
    ),
    Undone(
        "fixed topics are counted once for all co-partition groups",
        f"{ENGINE}/coordinator/group/streams/internal_topics.py",
        "_get_common_count(self._fixed_counts, repartition)",
        "_get_common_count({self.get_count(n) for n in self._fixed}, repartition)",
        "tests/unit/coordinator/group/test_large_topologies.py",
    ),
    Undone(
        "internal topics are created some at a time",
        f"{ENGINE}/server/coordinators/streams_topics.py",
        "        count = _count_chunk(topics)\n",
        "        count = len(topics)\n",
        "tests/unit/server/test_streams_topics.py",
    ),
    Undone(
        "a redrive holds a limited number of bytes of letters",
        f"{ENGINE}/dead_letters/redrive.py",
        " or chunk_bytes >= CHUNK_BYTES:",
        ":",
        "tests/compat/cli/test_redrive.py::test_large_letters_are_sent_few_at_a_time",
    ),
    Undone(
        "a redrive holds a limited number of bytes of the records of letters without them",
        f"{ENGINE}/dead_letters/redrive.py",
        "                    room -= sum(map(estimate_size_bytes, read.records))\n",
        "",
        "tests/compat/cli/test_redrive.py::test_large_letters_are_sent_few_at_a_time",
    ),
    Undone(
        "the copies of dead letters that are compressed are made in a thread",
        f"{ENGINE}/server/share/dead_letter_copies.py",
        "        header.compression\n        or header.size > BATCH_BYTES_MAX\n",
        "        header.size > BATCH_BYTES_MAX\n",
        "tests/unit/server/share/test_dead_letter_copies.py::"
        "test_what_is_compressed_is_left_to_a_thread",
    ),
    Undone(
        "a call that copies dead letters reads a few megabytes",
        f"{ENGINE}/server/share/dead_letter_copies.py",
        "    while remaining and cost < STEP_BYTES_MAX:\n",
        "    while remaining:\n",
        "tests/unit/server/share/test_dead_letter_copies.py::test_a_call_reads_a_few_megabytes",
    ),
    Undone(
        "the states of used logins age",
        f"{ENGINE}/console/access/openid.py",
        "            self._used.popitem(last=False)\n",
        "            break\n",
        "tests/unit/console/test_openid.py::test_a_state_asks_the_provider_once",
    ),
    Undone(
        "a page of the console ends by what its batches expand to",
        f"{ENGINE}/console/reading/read_budget.py",
        "            self.bytes_left -= len(body)\n",
        "",
        "tests/wire/test_console_reading.py::test_a_page_ends_by_what_its_batches_expand_to",
    ),
    Undone(
        "a turn of the console reads a few kilobytes",
        f"{ENGINE}/console/access/connections.py",
        "            transport.max_size = PARSE_BYTES\n",
        "            pass\n",
        "tests/unit/console/test_connections.py::test_a_turn_reads_a_few_kilobytes",
    ),
    Undone(
        "idle connections do not keep KEDA out",
        f"{OPERATOR}/scaler/grpc_server.py",
        "            longest.close()\n",
        "            return False\n",
        "tests/kube/scaler/test_keda_scaler.py::test_idle_connections_do_not_keep_keda_out",
    ),
    Undone(
        "a client of KEDA's port that reads nothing is cut off",
        f"{OPERATOR}/scaler/grpc_server.py",
        "            self._transport.abort()\n",
        "            pass\n",
        "tests/kube/scaler/test_keda_scaler.py::test_a_client_that_reads_no_answers_to_its_pings_is_cut_off",
    ),
    Undone(
        "a token that is not valid costs no iterations",
        f"{ENGINE}/security/credentials.py",
        "        if is_valid:\n            credential = self._of_token",
        "        if True:\n            credential = self._of_token",
        "tests/unit/security/test_scram_server.py::"
        "test_a_token_that_is_not_valid_costs_no_iterations",
    ),
    Undone(
        "strings that are not UTF-8 are answered",
        f"{ENGINE}/protocol/text.py",
        '        return _SURROGATE.sub(b"\\xff", bytes(data)).decode("utf-8", "replace")\n',
        "        raise\n",
        "tests/wire/test_extreme_requests.py::test_a_string_of_too_many_bytes",
    ),
    Undone(
        "a commit may be kept for ever",
        f"{ENGINE}/protocol/codec.py",
        "    return max(low, min(milliseconds, high)) * _MILLISECOND\n",
        "    return milliseconds * _MILLISECOND\n",
        "tests/wire/test_extreme_requests.py::test_a_commit_may_be_kept_for_ever",
    ),
    Undone(
        "a limit of descriptors that is too low is named with the need",
        f"{ENGINE}/server/process.py",
        "    if error.errno in open_files.SHORTAGES:\n",
        "    if False:\n",
        "tests/wire/test_open_files.py::test_a_limit_that_is_too_low_is_named_with_the_need",
    ),
    Undone(
        "indexes take no descriptor until they are used",
        f"{ENGINE}/log/indexes.py",
        "        self._missing = fresh\n",
        "        self._missing = fresh\n"
        "        self._kept_open = storage.open(path, create=True)\n",
        "tests/wire/test_open_files.py::test_a_broker_that_runs_can_start_again",
    ),
)

RIGHTS = (
    Undone(
        "tokens are for users only",
        f"{ENGINE}/server/handlers/security/create_delegation_token.py",
        "    if not all(map(tokens.is_user, principals)):\n",
        "    if False:\n",
        "tests/compat/oracles/test_delegation_tokens.py::test_owners_that_are_no_users",
    ),
    Undone(
        "no text equals the principal of a node",
        f"{ENGINE}/security/principals.py",
        "    __hash__ = object.__hash__\n\n    def __eq__(self, other: object) -> bool:\n"
        "        return self is other\n",
        "    __hash__ = str.__hash__\n\n    def __eq__(self, other: object) -> bool:\n"
        "        return str.__eq__(self, str(other))\n",
        "tests/unit/server/test_authorization.py::test_no_text_is_the_principal_of_a_node",
    ),
    Undone(
        "letters count only in the dead-letter topic of their group",
        f"{ENGINE}/dead_letters/redrive.py",
        'doubt = "" if letter is None else self._doubts[letter.group]',
        'doubt = ""',
        "tests/compat/cli/test_redrive.py::test_forged_letters_do_not_count",
    ),
    Undone(
        "a redrive of the operator runs as a user",
        f"{OPERATOR}/users/acting_users.py",
        "        if not security.is_authorized(cluster):\n            return None\n",
        "        return None\n",
        "tests/kube/queues/test_redrives.py::test_a_redrive_where_requests_are_authorized_has_a_user",
    ),
    Undone(
        "a dead-letter topic needs WRITE",
        f"{ENGINE}/server/handlers/configs/alter_configs.py",
        "        elif (topic := _find_forbidden_topic(broker, request, change_set)) is not None:\n",
        "        elif (topic := None) is not None:\n",
        "tests/wire/test_authorization.py::test_a_groups_dead_letter_topic_needs_write",
    ),
    Undone(
        "a record does not bring the headers of a dead letter",
        f"{ENGINE}/coordinator/share/dead_letters.py",
        "(name, v) for name, v in record.headers if not name.startswith(PREFIX)",
        "(name, v) for name, v in record.headers",
        "tests/unit/coordinator/share/test_dead_letters.py::"
        "test_a_record_does_not_bring_the_headers_of_a_dead_letter",
    ),
    Undone(
        "the client id of Kafka's tools is no right",
        f"{ENGINE}/server/handlers/records/produce.py",
        "return is_usual and broker.access.allows_cluster(request, Operation.CLUSTER_ACTION)",
        "return is_usual",
        "tests/wire/test_authorization.py::test_the_client_id_of_kafkas_tools_is_no_right",
    ),
    Undone(
        "nobody acknowledges for another principal's member",
        f"{ENGINE}/coordinator/share/sessions.py",
        "if session is None or session.principal != principal:",
        "if session is None:",
        "tests/wire/test_share_principals.py",
    ),
    Undone(
        "nobody takes over the session of another principal's member",
        f"{ENGINE}/coordinator/share/sessions.py",
        "if before is not None and before.principal != principal:",
        "if False:",
        "tests/wire/test_share_principals.py",
    ),
    Undone(
        "a subject loses the blanks that Kafka removes",
        f"{ENGINE}/security/oauthbearer.py",
        "return text.strip(_BLANKS)",
        "return text.strip()",
        "tests/unit/security/test_oauthbearer.py::"
        "test_a_subject_loses_the_blanks_that_kafka_removes",
    ),
    Undone(
        "the email must be verified",
        f"{ENGINE}/console/access/openid.py",
        'if settings.user_claim == "email" and claims.get("email_verified") is not True:',
        "if False:",
        "tests/unit/console/test_openid.py::test_the_email_must_be_verified",
    ),
    Undone(
        "log-ins without a login push out none",
        f"{ENGINE}/console/access/openid.py",
        "        self._used[pending.state] = pending.begun_at_s\n",
        "",
        "tests/unit/console/test_openid.py",
    ),
    Undone(
        "backups in the clear are refused where there are keys",
        f"{ENGINE}/server/tiered/restore.py",
        "    if not (target.accepts_clear or stored.is_sealed):\n",
        "    if False:\n",
        "tests/unit/tiered/test_restore.py::"
        "test_a_backup_in_the_clear_is_refused_where_there_are_keys",
    ),
    Undone(
        "names of topics in a backup are checked",
        f"{ENGINE}/server/tiered/restored_metadata.py",
        'raise DamagedObject(f"the backup has a topic with an invalid name: {reason}")',
        "pass",
        "tests/unit/tiered/test_restore.py::test_a_topic_with_an_invalid_name_is_refused",
    ),
    Undone(
        "a new directory is for its user alone",
        f"{ENGINE}/log/storage.py",
        "os.makedirs(path, mode=0o700, exist_ok=True)",
        "os.makedirs(path, exist_ok=True)",
        "tests/unit/log/test_storage.py::test_a_new_directory_is_for_its_user_alone",
    ),
    Undone(
        "outcomes of another user's directory are refused",
        f"{SPARK}/outcome_files.py",
        "        if owner not in (os.getuid(), 0):\n",
        "        if False:\n",
        "tests/unit/spark/test_outcomes.py::test_a_directory_of_another_user_is_refused",
    ),
    Undone(
        "escapes never reach a terminal",
        f"{ENGINE}/cli/terminal.py",
        "    if text.isprintable():\n        return text\n",
        "    return text\n",
        "tests/wire/test_cli_terminal.py::test_escapes_never_reach_a_terminal",
    ),
    Undone(
        "far timestamps are shown as they are",
        f"{ENGINE}/cli/output.py",
        "    if timestamp_ms > DATE_MS_MAX:\n        return str(timestamp_ms)\n",
        "",
        "tests/unit/cli/test_words.py::test_cells",
    ),
    Undone(
        "far timestamps are null in Spark",
        f"{SPARK}/columns.py",
        "            timestamp_ms if FIRST_MS <= timestamp_ms <= DATE_MS_MAX else None\n",
        "            timestamp_ms\n",
        "tests/spark/test_columns.py",
    ),
    Undone(
        "a config of a cluster is one setting",
        f"{OPERATOR}/model/broker_config.py",
        "        if not LINE.fullmatch(value):\n",
        "        if False:\n",
        "tests/kube/model/test_deciders.py::test_a_config_is_one_setting",
    ),
    Undone(
        "a stored token whose owner is no user opens nothing",
        f"{ENGINE}/security/delegation_tokens.py",
        "        return is_late or not is_user(self.owner)\n",
        "        return is_late\n",
        "tests/unit/metadata/test_delegation_tokens.py::"
        "test_a_token_whose_owner_is_no_user_opens_nothing",
    ),
    Undone(
        "a null where there is none, such as an HMAC, is refused",
        f"{ENGINE}/protocol/length_check.py",
        """            src.add(f"elif m < 0: raise WireError('{field.name} is null')", depth)\n""",
        "            pass\n",
        "tests/wire/test_request_fuzz.py::test_a_null_where_there_is_none_is_refused",
    ),
    Undone(
        "the API server admits no name of a cluster's config with a line break",
        "crds/queueclusters.shoal.dev.yaml",
        "                    - rule: self.all(k, k.matches('^[A-Za-z0-9._-]+$'))\n",
        "                    - rule: self.all(k, k.matches('^[^=]+$'))\n",
        "tests/kube/model/test_deciders.py::test_the_api_server_admits_the_same_names_and_values",
    ),
    Undone(
        "a name of a config has no line break",
        f"{OPERATOR}/model/broker_config.py",
        "        if not NAME.fullmatch(name):\n",
        "        if False:\n",
        "tests/kube/model/test_deciders.py::test_a_config_is_one_setting",
    ),
    Undone(
        "the namespace of the release is watched by default",
        "helm/shoal/values.yaml",
        'watchNamespaces: ["{{ .Release.Namespace }}"]',
        "watchNamespaces: []",
        "tests/e2e/test_chart.py::test_the_namespace_of_the_release_is_watched_by_default",
    ),
    Undone(
        "masks see JSON in JSON",
        f"{ENGINE}/console/reading/masks.py",
        """        has_fields = all(mark in inner for mark in '{":')\n""",
        "        return\n",
        "tests/unit/console/test_masks.py::test_json_in_json",
    ),
    Undone(
        "masks see a text of JSON in JSON",
        f"{ENGINE}/console/reading/masks.py",
        "        is_text = inner.startswith('\"')\n",
        "        is_text = False\n",
        "tests/unit/console/test_masks.py",
    ),
    Undone(
        "masks see JSON behind a byte order mark",
        f"{ENGINE}/console/reading/masks.py",
        'payload.decode("utf-8-sig")',
        "payload.decode()",
        "tests/unit/console/test_masks.py::test_json_with_a_byte_order_mark",
    ),
    Undone(
        "an address waits after failed logins",
        f"{ENGINE}/console/access/attempts.py",
        "        if wait_s > 0:\n",
        "        if False:\n",
        "tests/unit/console/test_access.py::test_an_address_waits_after_failed_logins",
    ),
    Undone(
        "images install by hashes",
        "broker_image/Containerfile",
        "RUN python3 -m pip install --no-cache-dir --require-hashes --only-binary=:all: --target"
        " /opt/shoal -r image-broker.txt",
        "RUN python3 -m pip install --no-cache-dir --only-binary=:all: --target"
        " /opt/shoal -r image-broker.txt",
        "tests/unit/tools/test_lint.py::test_our_images_install_by_hashes",
    ),
    Undone(
        "the port of metrics may be for some pods only",
        f"{OPERATOR}/model/cluster.py",
        '        scrape["from"] = [*peers["metricsFrom"], *brokers, operator]\n',
        "        pass\n",
        "tests/kube/model/test_security.py::test_the_port_of_metrics_may_be_for_some_pods_only",
    ),
)

#: All of them.
TABLE = (*DATA, *WORK, *RIGHTS)
