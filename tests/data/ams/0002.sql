BEGIN TRANSACTION;
CREATE TABLE arctic_revision (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT arctic_revision_pkc PRIMARY KEY (version_num)
);
INSERT INTO "arctic_revision" VALUES('0002');
CREATE TABLE claims (
	table_uuid TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	process_id TEXT NOT NULL, 
	PRIMARY KEY (table_uuid, "key")
);
CREATE TABLE commits (
	snapshot_id BIGINT NOT NULL, 
	process_id TEXT NOT NULL, 
	table_uuid TEXT NOT NULL, 
	state TEXT NOT NULL, 
	record TEXT NOT NULL, 
	position BIGINT NOT NULL, 
	changed_at DATETIME NOT NULL, 
	PRIMARY KEY (snapshot_id)
);
CREATE TABLE events (
	number BIGINT NOT NULL, 
	at DATETIME NOT NULL, 
	kind TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	"table" TEXT, 
	"before" TEXT, 
	"after" TEXT NOT NULL, 
	why TEXT NOT NULL, 
	"by" TEXT NOT NULL, 
	PRIMARY KEY (number)
);
CREATE TABLE last_event (
	number BIGINT NOT NULL
);
INSERT INTO "last_event" VALUES(0);
CREATE TABLE lease (
	number BIGINT NOT NULL, 
	holder TEXT NOT NULL, 
	url TEXT NOT NULL, 
	expires_at DATETIME NOT NULL
);
INSERT INTO "lease" VALUES(0,'','','2000-01-01 00:00:00');
CREATE TABLE optimizers (
	id TEXT NOT NULL, 
	"group" TEXT NOT NULL, 
	container TEXT, 
	state TEXT NOT NULL, 
	parallelism BIGINT NOT NULL, 
	memory_bytes BIGINT, 
	version TEXT NOT NULL, 
	host TEXT NOT NULL, 
	token_hash TEXT NOT NULL, 
	heartbeat_seconds DOUBLE NOT NULL, 
	registered_at DATETIME NOT NULL, 
	heard_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	PRIMARY KEY (id)
);
CREATE TABLE plans (
	process_id TEXT NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (process_id)
);
CREATE TABLE processes (
	id TEXT NOT NULL, 
	table_uuid TEXT NOT NULL, 
	"table" TEXT NOT NULL, 
	"group" TEXT NOT NULL, 
	kinds TEXT NOT NULL, 
	state TEXT NOT NULL, 
	"trigger" TEXT NOT NULL, 
	job_id TEXT NOT NULL, 
	commits_at_once BOOLEAN NOT NULL, 
	reasons TEXT NOT NULL, 
	expected TEXT NOT NULL, 
	actual TEXT NOT NULL, 
	outcome TEXT, 
	tasks BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, 
	clean_at DATETIME, 
	PRIMARY KEY (id)
);
CREATE TABLE results (
	process_id TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (process_id, number)
);
CREATE TABLE tables (
	uuid TEXT NOT NULL, 
	name TEXT NOT NULL, 
	catalog TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	"group" TEXT NOT NULL, 
	base_snapshot_id BIGINT, 
	change_snapshot_id BIGINT, 
	base_sequence BIGINT, 
	change_sequence BIGINT, 
	figures TEXT NOT NULL, 
	looked_at DATETIME, 
	next_look_at DATETIME NOT NULL, 
	look_seconds DOUBLE NOT NULL, 
	"trigger" TEXT, 
	must_plan BOOLEAN NOT NULL, 
	planned_at DATETIME, 
	committed_at DATETIME, 
	failed_in_a_row BIGINT NOT NULL, 
	plan_after DATETIME, 
	paused_by TEXT, 
	pause_reason TEXT, 
	paused_until DATETIME, 
	problem TEXT, 
	PRIMARY KEY (uuid)
);
CREATE TABLE tasks (
	process_id TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	table_uuid TEXT NOT NULL, 
	"group" TEXT NOT NULL, 
	unit BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	partition TEXT NOT NULL, 
	state TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	attempt BIGINT, 
	optimizer_id TEXT, 
	retries BIGINT NOT NULL, 
	failures TEXT NOT NULL, 
	input_files BIGINT NOT NULL, 
	input_bytes BIGINT NOT NULL, 
	rows_done BIGINT NOT NULL, 
	bytes_done BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	queued_at DATETIME, 
	handed_out_at DATETIME, 
	acknowledged_at DATETIME, 
	progressed_at DATETIME, 
	retry_at DATETIME, 
	prepared_at DATETIME, 
	ended_at DATETIME, 
	PRIMARY KEY (process_id, number)
);
CREATE TABLE units (
	process_id TEXT NOT NULL, 
	unit BIGINT NOT NULL, 
	dropped TEXT, 
	PRIMARY KEY (process_id, unit)
);
CREATE INDEX processes_in_state ON processes (state);
CREATE INDEX processes_of_table ON processes (table_uuid, state);
CREATE INDEX queued_tasks ON tasks ("group", state, queued_at);
CREATE INDEX tasks_in_state ON tasks (state);
CREATE INDEX tasks_of_optimizer ON tasks (optimizer_id);
CREATE INDEX commits_in_state ON commits (state);
CREATE INDEX commits_of_process ON commits (process_id);
CREATE INDEX claims_of_process ON claims (process_id);
CREATE INDEX events_of_object ON events (kind, "key", number);
CREATE INDEX events_of_table ON events ("table", number);
CREATE UNIQUE INDEX one_open_commit ON commits (table_uuid) WHERE state = 'open';
CREATE INDEX tables_to_look_at ON tables (next_look_at);
CREATE INDEX processes_to_clean ON processes (clean_at);
CREATE INDEX processes_ended ON processes (ended_at);
COMMIT;
