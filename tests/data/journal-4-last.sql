BEGIN TRANSACTION;
CREATE TABLE environment (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "environment" VALUES('e1','{"PATH":"/usr/bin","NAME":"Größe\n"}');
INSERT INTO "environment" VALUES('e2','{"HOME":"/root"}');
CREATE TABLE forgotten (
    uid INTEGER NOT NULL, key TEXT NOT NULL, at_s REAL NOT NULL,
    PRIMARY KEY (uid, key)) WITHOUT ROWID;
INSERT INTO "forgotten" VALUES(1000,'name:old',1790000000.0);
CREATE TABLE job (
    id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, state TEXT NOT NULL, ended_s REAL,
    environment_id TEXT NOT NULL, record TEXT NOT NULL, holds INTEGER NOT NULL DEFAULT 0);
INSERT INTO "job" VALUES(1,1001,'COMPLETED',1790000060.5,'e1','{"id":1,"spec":{"command":["/bin/sh","-c","solve --step 1 Größe"],"cwd":"/home/ann","name":"step1","environment_id":"e1"},"uid":1001,"state":"COMPLETED","since_s":1790000001.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"started_s":1790000001.0,"ended_s":1790000060.5,"run_s":59.5,"exit":{"code":0,"signal":null,"out_of_memory":false},"io":{"read_bytes":10000000,"written_bytes":8589934592,"operations":77}}',0);
INSERT INTO "job" VALUES(2,1000,'FAILED',1790000030.0,'e2','{"id":2,"spec":{"command":["/bin/sh","-c","solve --step 2 Größe"],"cwd":"/home/ann","name":"step2","environment_id":"e2"},"uid":1000,"state":"FAILED","since_s":1790000002.0,"submitted_s":1790000000.0,"attempt":2,"partition":1,"started_s":1790000002.0,"ended_s":1790000030.0,"run_s":28,"reason":{"code":"ExitCode","text":"exit code 3"},"exit":{"code":3,"signal":null,"out_of_memory":false},"io":{"read_bytes":5,"written_bytes":null,"operations":null}}',0);
INSERT INTO "job" VALUES(3,1001,'CANCELLED',1790000005.0,'e1','{"id":3,"spec":{"command":["/bin/sh","-c","solve --step 3 Größe"],"cwd":"/home/ann","name":"step3","environment_id":"e1"},"uid":1001,"state":"CANCELLED","since_s":1790000003.0,"submitted_s":1790000000.0,"ended_s":1790000005.0,"reason":{"code":"Cancelled","text":"cancelled by ann"}}',0);
INSERT INTO "job" VALUES(4,1000,'TIMEOUT',1790000013.0,'e2','{"id":4,"spec":{"command":["/bin/sh","-c","solve --step 4 Größe"],"cwd":"/home/ann","name":"step4","walltime_s":10.0,"environment_id":"e2"},"uid":1000,"state":"TIMEOUT","since_s":1790000004.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"started_s":1790000003.0,"ended_s":1790000013.0,"run_s":10,"reason":{"code":"Walltime","text":"ran for its walltime of 10 s"},"exit":{"code":null,"signal":15,"out_of_memory":false}}',0);
INSERT INTO "job" VALUES(5,1001,'OUT_OF_MEMORY',1790000014.0,'e1','{"id":5,"spec":{"command":["/bin/sh","-c","solve --step 5 Größe"],"cwd":"/home/ann","name":"step5","memory_bytes":1073741824,"environment_id":"e1"},"uid":1001,"state":"OUT_OF_MEMORY","since_s":1790000005.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"started_s":1790000003.0,"ended_s":1790000014.0,"run_s":11,"reason":{"code":"OutOfMemory","text":"killed because memory ran out"},"exit":{"code":null,"signal":9,"out_of_memory":true}}',0);
INSERT INTO "job" VALUES(6,1000,'LOST',1790000015.0,'e2','{"id":6,"spec":{"command":["/bin/sh","-c","solve --step 6 Größe"],"cwd":"/home/ann","name":"step6","environment_id":"e2"},"uid":1000,"state":"LOST","since_s":1790000006.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"started_s":1790000003.0,"ended_s":1790000015.0,"reason":{"code":"Lost","text":"its exit could not be learned"},"exit":{"code":null,"signal":null,"out_of_memory":false}}',0);
INSERT INTO "job" VALUES(7,1001,'RUNNING',NULL,'e1','{"id":7,"spec":{"command":["/bin/sh","-c","solve --step 7 Größe"],"cwd":"/home/ann","name":"step7","io_rate_bytes_per_s":40000000.0,"stdout":"out-%j","environment_id":"e1","umask":23},"uid":1001,"state":"RUNNING","since_s":1790000007.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"slots":[0],"started_s":1790000001.0}',0);
INSERT INTO "job" VALUES(8,1000,'SUSPENDED_IO',NULL,'e2','{"id":8,"spec":{"command":["/bin/sh","-c","solve --step 8 Größe"],"cwd":"/home/ann","name":"step8","environment_id":"e2"},"uid":1000,"state":"SUSPENDED_IO","since_s":1790000008.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"slots":[1],"started_s":1790000001.0,"run_s":7.0,"suspended_io_s":1.25,"io_hold":true,"frozen":true,"freeze_asked":true,"io_held_since_s":1790000008.0,"hold_reason":{"code":"IoBound","text":"all jobs move 90 MB/s"},"reason":{"code":"IoBound","text":"all jobs move 90 MB/s"}}',0);
INSERT INTO "job" VALUES(9,1001,'SUSPENDED_USER',NULL,'e1','{"id":9,"spec":{"command":["/bin/sh","-c","solve --step 9 Größe"],"cwd":"/home/ann","name":"step9","environment_id":"e1"},"uid":1001,"state":"SUSPENDED_USER","since_s":1790000009.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"slots":[2],"started_s":1790000001.0,"user_hold":true,"frozen":true,"freeze_asked":true,"user_hold_reason":{"code":"Suspended","text":"suspended by ann; ''iod resume 9'' lets it go"},"reason":{"code":"Suspended","text":"suspended by ann; ''iod resume 9'' lets it go"}}',0);
INSERT INTO "job" VALUES(10,1000,'STOPPING',NULL,'e2','{"id":10,"spec":{"command":["/bin/sh","-c","solve --step 10 Größe"],"cwd":"/home/ann","name":"step10","environment_id":"e2"},"uid":1000,"state":"STOPPING","since_s":1790000010.0,"submitted_s":1790000000.0,"attempt":1,"partition":0,"slots":[3],"started_s":1790000001.0,"stop":"CANCELLED","stop_reason":{"code":"Cancelled","text":"cancelled by bob"},"kill_at_s":1790000020.0,"reason":{"code":"Cancelled","text":"cancelled by bob"}}',0);
INSERT INTO "job" VALUES(11,1001,'STARTING',NULL,'e1','{"id":11,"spec":{"command":["/bin/sh","-c","solve --step 11 Größe"],"cwd":"/home/ann","name":"step11","environment_id":"e1"},"uid":1001,"state":"STARTING","since_s":1790000011.0,"submitted_s":1790000000.0,"attempt":1,"partition":1,"slots":[4]}',0);
INSERT INTO "job" VALUES(12,1000,'PENDING',NULL,'e2','{"id":12,"spec":{"command":["/bin/sh","-c","solve --step 12 Größe"],"cwd":"/home/ann","name":"step12","environment_id":"e2"},"uid":1000,"state":"PENDING","since_s":1790000012.0,"submitted_s":1790000000.0}',0);
INSERT INTO "job" VALUES(13,1001,'HELD',NULL,'e1','{"id":13,"spec":{"command":["/bin/sh","-c","solve --step 13 Größe"],"cwd":"/home/ann","name":"step13","environment_id":"e1"},"uid":1001,"state":"HELD","since_s":1790000013.0,"submitted_s":1790000000.0,"user_hold":true,"user_hold_reason":{"code":"Suspended","text":"suspended by ann; ''iod resume 13'' lets it go"},"reason":{"code":"Suspended","text":"suspended by ann; ''iod resume 13'' lets it go"}}',0);
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('anchor_s',12.5);
INSERT INTO "meta" VALUES('events_gone',0);
INSERT INTO "meta" VALUES('mode','shadow');
INSERT INTO "meta" VALUES('next_event',2);
INSERT INTO "meta" VALUES('next_id',14);
INSERT INTO "meta" VALUES('schema',4);
INSERT INTO "meta" VALUES('seed',20261121);
CREATE TABLE minute (
    job_id INTEGER NOT NULL, minute INTEGER NOT NULL, read_bytes INTEGER NOT NULL,
    written_bytes INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (job_id, minute)) WITHOUT ROWID;
INSERT INTO "minute" VALUES(1,29833333,100,0,60.0);
INSERT INTO "minute" VALUES(1,29833334,100,7,60.0);
INSERT INTO "minute" VALUES(7,29833333,700,0,60.0);
INSERT INTO "minute" VALUES(7,29833334,700,7,60.0);
INSERT INTO "minute" VALUES(8,29833333,800,0,60.0);
INSERT INTO "minute" VALUES(8,29833334,800,7,60.0);
CREATE TABLE note (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, record TEXT NOT NULL, event INTEGER);
INSERT INTO "note" VALUES(1,1790000008.0,'evidence','{"at_s":1790000008.0,"signal":"total of all jobs","quantity":"bandwidth","value":90000000.0,"threshold":40000000.0,"load":90000000.0,"allowed":40000000.0,"fits":null,"total_bytes_per_s":90000000.0,"jobs":[{"job_id":7,"rate_bytes_per_s":30000000.0,"load":30000000.0,"verdict":"spared","why":""},{"job_id":8,"rate_bytes_per_s":60000000.0,"load":60000000.0,"verdict":"suspend","why":"all jobs move 90 MB/s"}],"is_shadow":false}',NULL);
INSERT INTO "note" VALUES(2,1790000009.0,'shadow','{"job_id":8,"at_s":1790000009.0,"verdict":"resume","reason":null,"lasted_s":1.0}',NULL);
INSERT INTO "note" VALUES(3,1790000009.5,'mode','{"type":"ModeChanged","mode":"shadow","by":"ann","at_s":1790000009.5}',NULL);
INSERT INTO "note" VALUES(4,1790000019.0,'drain','{"at_s":1790000019.0,"is_on":false,"by":"ann","reason":""}',1);
CREATE TABLE note_job (
    job_id INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (job_id, seq)) WITHOUT ROWID;
INSERT INTO "note_job" VALUES(8,1);
INSERT INTO "note_job" VALUES(8,2);
CREATE TABLE sample (at_s REAL PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "sample" VALUES(1790000007.0,X'84A461745F73CB41DAAC4EE1C00000A46A6F627381078AAA726561645F6279746573CB4085E00000000000AD7772697474656E5F6279746573CB401C000000000000AA6F7065726174696F6E73C0B16465766963655F726561645F6279746573C0B46465766963655F7772697474656E5F6279746573C0A56370755F73C0AE7265736964656E745F6279746573C0AA696F5F7374616C6C5F73C0AE6D656D6F72795F7374616C6C5F73C0A764657669636573C0A76465766963657380A46E6F646585AA696F5F7374616C6C5F73C0AE6D656D6F72795F7374616C6C5F73C0AB64697274795F6279746573C0AF77726974656261636B5F6279746573C0AF617661696C61626C655F6279746573C0');
INSERT INTO "sample" VALUES(1790000008.0,X'84A461745F73CB41DAAC4EE2000000A46A6F627381078AAA726561645F6279746573CB4089000000000000AD7772697474656E5F6279746573CB4020000000000000AA6F7065726174696F6E73C0B16465766963655F726561645F6279746573C0B46465766963655F7772697474656E5F6279746573C0A56370755F73C0AE7265736964656E745F6279746573C0AA696F5F7374616C6C5F73C0AE6D656D6F72795F7374616C6C5F73C0A764657669636573C0A76465766963657380A46E6F646585AA696F5F7374616C6C5F73C0AE6D656D6F72795F7374616C6C5F73C0AB64697274795F6279746573C0AF77726974656261636B5F6279746573C0AF617661696C61626C655F6279746573C0');
CREATE TABLE trace (
    uid INTEGER NOT NULL, name TEXT NOT NULL, log TEXT NOT NULL, imported_s REAL NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (uid, name, log)) WITHOUT ROWID;
INSERT INTO "trace" VALUES(1000,'','lu.darshan',1790000000.0,'{"uid":1000,"command":["/usr/bin/lu","8"],"log":"lu.darshan","ended_s":1789999991.0,"imported_s":1790000000.0,"run_s":5.0,"processes":4,"read_bytes":1000000000,"written_bytes":5,"io_s":1.5,"operations":99}');
CREATE TABLE transition (seq INTEGER PRIMARY KEY, job_id INTEGER NOT NULL, record TEXT NOT NULL, event INTEGER);
INSERT INTO "transition" VALUES(1,1,'{"job_id":1,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(2,2,'{"job_id":2,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(3,3,'{"job_id":3,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(4,4,'{"job_id":4,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(5,5,'{"job_id":5,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(6,6,'{"job_id":6,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(7,7,'{"job_id":7,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(8,8,'{"job_id":8,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(9,9,'{"job_id":9,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(10,10,'{"job_id":10,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(11,11,'{"job_id":11,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(12,12,'{"job_id":12,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(13,13,'{"job_id":13,"at_s":1790000000.0,"before":null,"after":"PENDING","reason":null}',NULL);
INSERT INTO "transition" VALUES(14,1,'{"job_id":1,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(15,1,'{"job_id":1,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(16,1,'{"job_id":1,"at_s":1790000001.0,"before":"RUNNING","after":"COMPLETED","reason":null}',NULL);
INSERT INTO "transition" VALUES(17,2,'{"job_id":2,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(18,2,'{"job_id":2,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(19,2,'{"job_id":2,"at_s":1790000002.0,"before":"RUNNING","after":"FAILED","reason":{"code":"ExitCode","text":"exit code 3"}}',NULL);
INSERT INTO "transition" VALUES(20,3,'{"job_id":3,"at_s":1790000003.0,"before":"PENDING","after":"CANCELLED","reason":{"code":"Cancelled","text":"cancelled by ann"}}',NULL);
INSERT INTO "transition" VALUES(21,4,'{"job_id":4,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(22,4,'{"job_id":4,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(23,4,'{"job_id":4,"at_s":1790000004.0,"before":"RUNNING","after":"TIMEOUT","reason":{"code":"Walltime","text":"ran for its walltime of 10 s"}}',NULL);
INSERT INTO "transition" VALUES(24,5,'{"job_id":5,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(25,5,'{"job_id":5,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(26,5,'{"job_id":5,"at_s":1790000005.0,"before":"RUNNING","after":"OUT_OF_MEMORY","reason":{"code":"OutOfMemory","text":"killed because memory ran out"}}',NULL);
INSERT INTO "transition" VALUES(27,6,'{"job_id":6,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(28,6,'{"job_id":6,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(29,6,'{"job_id":6,"at_s":1790000006.0,"before":"RUNNING","after":"LOST","reason":{"code":"Lost","text":"its exit could not be learned"}}',NULL);
INSERT INTO "transition" VALUES(30,7,'{"job_id":7,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(31,7,'{"job_id":7,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(32,8,'{"job_id":8,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(33,8,'{"job_id":8,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(34,8,'{"job_id":8,"at_s":1790000008.0,"before":"RUNNING","after":"SUSPENDED_IO","reason":{"code":"IoBound","text":"all jobs move 90 MB/s"}}',NULL);
INSERT INTO "transition" VALUES(35,9,'{"job_id":9,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(36,9,'{"job_id":9,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(37,9,'{"job_id":9,"at_s":1790000009.0,"before":"RUNNING","after":"SUSPENDED_USER","reason":{"code":"Suspended","text":"suspended by ann; ''iod resume 9'' lets it go"}}',NULL);
INSERT INTO "transition" VALUES(38,10,'{"job_id":10,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(39,10,'{"job_id":10,"at_s":1790000001.0,"before":"STARTING","after":"RUNNING","reason":null}',NULL);
INSERT INTO "transition" VALUES(40,10,'{"job_id":10,"at_s":1790000010.0,"before":"RUNNING","after":"STOPPING","reason":{"code":"Cancelled","text":"cancelled by bob"}}',NULL);
INSERT INTO "transition" VALUES(41,11,'{"job_id":11,"at_s":1790000000.5,"before":"PENDING","after":"STARTING","reason":null}',NULL);
INSERT INTO "transition" VALUES(42,13,'{"job_id":13,"at_s":1790000013.0,"before":"PENDING","after":"HELD","reason":{"code":"Suspended","text":"suspended by ann; ''iod resume 13'' lets it go"}}',NULL);
CREATE INDEX job_ended ON job (ended_s);
CREATE INDEX job_environment ON job (environment_id);
CREATE INDEX transition_job ON transition (job_id);
CREATE INDEX note_at ON note (at_s);
CREATE INDEX job_holds ON job (id) WHERE holds;
CREATE INDEX transition_event ON transition (event) WHERE event IS NOT NULL;
CREATE INDEX note_event ON note (event) WHERE event IS NOT NULL;
COMMIT;
