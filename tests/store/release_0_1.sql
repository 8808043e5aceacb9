BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE audit (
	number INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	who TEXT NOT NULL, 
	what TEXT NOT NULL, 
	job TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "audit" VALUES(1,1.79497762015768289566e+09,'admin','add user','','{"user":"ada","role":"user"}');
INSERT INTO "audit" VALUES(2,1.79497762444336271285e+09,'admin','submit','train-287ff410c02893b0','{"name":"train"}');
INSERT INTO "audit" VALUES(3,1.79497762449266886706e+09,'admin','submit','train-abce9f12616f79be','{"name":"train"}');
INSERT INTO "audit" VALUES(4,1.79497762457956743236e+09,'admin','submit','fails-93a5b8c720d5333d','{"name":"fails"}');
INSERT INTO "audit" VALUES(5,1.79497762749938273435e+09,'admin','submit','halted-11ff6ef4ae7d1923','{"name":"halted"}');
INSERT INTO "audit" VALUES(6,1.79497762798722839362e+09,'admin','halt','halted-11ff6ef4ae7d1923','{}');
INSERT INTO "audit" VALUES(7,1.79497762822887969012e+09,'admin','submit','runs-a-8fc93b5c109d09ed','{"name":"runs-a"}');
INSERT INTO "audit" VALUES(8,1794977628.45832,'admin','submit','runs-b-904f7e940374a5c3','{"name":"runs-b"}');
INSERT INTO "audit" VALUES(9,1.79497762871579670911e+09,'admin','submit','waits-ef49f96d62138096','{"name":"waits"}');
CREATE TABLE head (
	id INTEGER NOT NULL, 
	appends BIGINT NOT NULL, 
	position BIGINT NOT NULL, 
	jobs BIGINT NOT NULL, 
	lease BIGINT NOT NULL, 
	holder TEXT NOT NULL, 
	url TEXT NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "head" VALUES(1,25,35,7,1,'','http://127.0.0.1:45631',0.0);
CREATE TABLE jobs (
	seq INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	team TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	status TEXT NOT NULL, 
	stage TEXT NOT NULL, 
	reason_code TEXT NOT NULL, 
	reason_text TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	workers INTEGER NOT NULL, 
	nodes TEXT NOT NULL, 
	submitted_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	exit_code INTEGER, 
	progress TEXT, 
	manifest TEXT NOT NULL, 
	folder TEXT, 
	estimates TEXT, 
	PRIMARY KEY (seq), 
	UNIQUE (id)
);
INSERT INTO "jobs" VALUES(1,'train-287ff410c02893b0','train','admin','','default','COMPLETED','','exited','every worker ended well',1,0,'[]',1.79497762444336271285e+09,1.7949776249019441604e+09,1.79497762728715324403e+09,0,'{"done":1.0,"loss":0.05,"step":20,"steps":20,"step_s":0.10014832000001661}','{"name":"train","command":"python -c \"\nimport time\nfrom presage import job\nfor step in range(1, 21):\n    job.step(step=step, steps=20, metrics={''loss'': 1 / step})\n    time.sleep(0.1)\n\" ","launcher":"none","resources":{"cpus":1.0,"memory":"256Mi","gpus":1},"queue":"default","priority":0,"preemptible":true,"share":true,"data":{},"secrets":{},"env":{},"retry":{"failures":0},"grace":30.0,"elastic":[],"model":{"ref":"zoo:mlp","batch":8,"steps":20,"optimizer":"sgd","precision":"fp32","accumulate":1,"quant":"none","checkpoint":"none","loss":"full","attention":"sdpa","layout":"nchw","compile":false,"cudnn_benchmark":false,"offload":"none"},"rightsize":true,"labels":{},"webhooks":[]}',NULL,'{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":0.05914,"p50":0.10044,"p90":0.25294,"unit":"s","source":"20 steps \u00d7 step time on a100-40g"},"memory_mib":{"p10":374.2,"p50":549.6,"p90":1087.9,"unit":"MiB","source":"memory on a100-40g"},"utilization":{"p10":0.057999999999999996,"p50":0.14300000000000002,"p90":0.308,"unit":"share","source":"utilization of a100-40g"},"step_s":{"p10":0.002957,"p50":0.005022,"p90":0.012647,"unit":"s","source":"step time on a100-40g"}}');
INSERT INTO "jobs" VALUES(2,'train-abce9f12616f79be','train','admin','','default','COMPLETED','','exited','every worker ended well',1,0,'[]',1.79497762449266886706e+09,1.79497762490822100646e+09,1.79497762717114686965e+09,0,'{"done":1.0,"loss":0.05,"step":20,"steps":20,"step_s":0.10015637800006516}','{"name":"train","command":"python -c \"\nimport time\nfrom presage import job\nfor step in range(1, 21):\n    job.step(step=step, steps=20, metrics={''loss'': 1 / step})\n    time.sleep(0.1)\n\" ","launcher":"none","resources":{"cpus":1.0,"memory":"256Mi","gpus":1},"queue":"default","priority":0,"preemptible":true,"share":true,"data":{},"secrets":{},"env":{},"retry":{"failures":0},"grace":30.0,"elastic":[],"model":{"ref":"zoo:mlp","batch":8,"steps":20,"optimizer":"sgd","precision":"fp32","accumulate":1,"quant":"none","checkpoint":"none","loss":"full","attention":"sdpa","layout":"nchw","compile":false,"cudnn_benchmark":false,"offload":"none"},"rightsize":true,"labels":{},"webhooks":[]}',NULL,'{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":0.05914,"p50":0.10044,"p90":0.25294,"unit":"s","source":"20 steps \u00d7 step time on a100-40g"},"memory_mib":{"p10":374.2,"p50":549.6,"p90":1087.9,"unit":"MiB","source":"memory on a100-40g"},"utilization":{"p10":0.057999999999999996,"p50":0.14300000000000002,"p90":0.308,"unit":"share","source":"utilization of a100-40g"},"step_s":{"p10":0.002957,"p50":0.005022,"p90":0.012647,"unit":"s","source":"step time on a100-40g"}}');
INSERT INTO "jobs" VALUES(3,'fails-93a5b8c720d5333d','fails','admin','','default','FAILED','','error','worker-0 ended with exit code 3',1,0,'[]',1.79497762457956743236e+09,1.79497762492765378953e+09,1.79497762495950531963e+09,3,NULL,'{"name":"fails","command":"exit 3","launcher":"none","resources":{"cpus":1.0,"memory":"256Mi","gpus":0},"queue":"default","priority":0,"preemptible":true,"share":true,"data":{},"secrets":{},"env":{},"retry":{"failures":0},"grace":30.0,"elastic":[],"rightsize":true,"labels":{},"webhooks":[]}',NULL,NULL);
INSERT INTO "jobs" VALUES(4,'halted-11ff6ef4ae7d1923','halted','admin','','default','HALTED','','requested','halted by request',1,0,'[]',1.79497762749938273435e+09,1.79497762775255680078e+09,NULL,NULL,NULL,'{"name":"halted","command":"sleep 3600","launcher":"none","resources":{"cpus":1.0,"memory":"256Mi","gpus":1},"queue":"default","priority":0,"preemptible":true,"share":true,"data":{},"secrets":{},"env":{},"retry":{"failures":0},"grace":30.0,"elastic":[],"rightsize":true,"labels":{},"webhooks":[]}',NULL,'{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.2472089315505073,"p50":2794.251575118397,"p90":16675.109175949125,"unit":"s","source":"history of 1 runs"}}');
INSERT INTO "jobs" VALUES(5,'runs-a-8fc93b5c109d09ed','runs-a','admin','','default','PROCESSING','','ok','',1,1,'["node-0"]',1.79497762822887969012e+09,1.79497762843126559256e+09,NULL,NULL,NULL,'{"name":"runs-a","command":"sleep 3600","launcher":"none","resources":{"cpus":1.0,"memory":"256Mi","gpus":4},"queue":"default","priority":0,"preemptible":true,"share":true,"data":{},"secrets":{},"env":{},"retry":{"failures":0},"grace":30.0,"elastic":[],"rightsize":true,"labels":{},"webhooks":[]}',NULL,'{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}}');
INSERT INTO "jobs" VALUES(6,'runs-b-904f7e940374a5c3','runs-b','admin','','default','PROCESSING','','ok','',1,1,'["node-1"]',1794977628.45832,1.79497762866277241712e+09,NULL,NULL,NULL,'{"name":"runs-b","command":"sleep 3600","launcher":"none","resources":{"cpus":1.0,"memory":"256Mi","gpus":4},"queue":"default","priority":0,"preemptible":true,"share":true,"data":{},"secrets":{},"env":{},"retry":{"failures":0},"grace":30.0,"elastic":[],"rightsize":true,"labels":{},"webhooks":[]}',NULL,'{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}}');
INSERT INTO "jobs" VALUES(7,'waits-ef49f96d62138096','waits','admin','','default','QUEUED','','ok','',0,0,'[]',1.79497762871579670911e+09,NULL,NULL,NULL,NULL,'{"name":"waits","command":"true","launcher":"none","resources":{"cpus":1.0,"memory":"256Mi","gpus":4},"queue":"default","priority":0,"preemptible":true,"share":true,"data":{},"secrets":{},"env":{},"retry":{"failures":0},"grace":30.0,"elastic":[],"rightsize":true,"labels":{},"webhooks":[]}',NULL,'{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}}');
CREATE TABLE journal (
	position INTEGER NOT NULL, 
	now DOUBLE NOT NULL, 
	lease BIGINT NOT NULL, 
	facts TEXT NOT NULL, 
	decisions TEXT NOT NULL, 
	PRIMARY KEY (position)
);
INSERT INTO "journal" VALUES(0,1.79497761815475249287e+09,1,'[{"type":"RulesChanged","policy":"{\"order\":\"fifo\",\"threshold_gpu_s\":18000.0,\"round_s\":60.0,\"mode\":\"strict\",\"backfill\":true,\"backfill_depth\":100,\"placement\":\"pack\",\"topology_levels\":[\"rack\",\"area\"],\"gang\":true,\"preempt\":\"none\",\"elastic\":false,\"shrink_after_s\":0.0,\"grow_after_s\":0.0,\"grow_by\":\"gain\",\"resize_cost_s\":0.0,\"max_jobs_per_gpu\":null,\"colocate\":false,\"max_slowdown\":1.5,\"idle_worth\":0.03,\"profile_s\":0.0,\"profile_gpus\":0,\"move_gain_s\":0.0,\"queues\":{}}","predictor":"time sharing; declared-1; scaling of any job"},{"type":"NodeUp","node":{"name":"node-0","devices":[{},{},{},{}]}},{"type":"NodeUp","node":{"name":"node-1","devices":[{},{},{},{}]}}]','[]');
INSERT INTO "journal" VALUES(3,1.79497762444387912745e+09,1,'[{"type":"JobSubmitted","spec":{"id":"train-287ff410c02893b0","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":1000}}],"owner":"admin","checkpointable":false,"model":"zoo:mlp","entrypoint":["sh","-c","python -c \"\nimport time\nfrom presage import job\nfor step in range(1, 21):\n    job.step(step=step, steps=20, metrics={''loss'': 1 / step})\n    time.sleep(0.1)\n\" "]},"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":0.05914,"p50":0.10044,"p90":0.25294,"unit":"s","source":"20 steps \u00d7 step time on a100-40g"},"memory_mib":{"p10":374.2,"p50":549.6,"p90":1087.9,"unit":"MiB","source":"memory on a100-40g"},"utilization":{"p10":0.057999999999999996,"p50":0.14300000000000002,"p90":0.308,"unit":"share","source":"utilization of a100-40g"},"step_s":{"p10":0.002957,"p50":0.005022,"p90":0.012647,"unit":"s","source":"step time on a100-40g"}}}]','[{"type":"Launch","job":"train-287ff410c02893b0","attempt":1,"workers":[{"role":0,"index":0,"node":"node-0","devices":[0]}]}]');
INSERT INTO "journal" VALUES(5,1.79497762453134155269e+09,1,'[{"type":"JobSubmitted","spec":{"id":"train-abce9f12616f79be","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":1000}}],"owner":"admin","checkpointable":false,"model":"zoo:mlp","entrypoint":["sh","-c","python -c \"\nimport time\nfrom presage import job\nfor step in range(1, 21):\n    job.step(step=step, steps=20, metrics={''loss'': 1 / step})\n    time.sleep(0.1)\n\" "]},"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":0.05914,"p50":0.10044,"p90":0.25294,"unit":"s","source":"20 steps \u00d7 step time on a100-40g"},"memory_mib":{"p10":374.2,"p50":549.6,"p90":1087.9,"unit":"MiB","source":"memory on a100-40g"},"utilization":{"p10":0.057999999999999996,"p50":0.14300000000000002,"p90":0.308,"unit":"share","source":"utilization of a100-40g"},"step_s":{"p10":0.002957,"p50":0.005022,"p90":0.012647,"unit":"s","source":"step time on a100-40g"}}}]','[{"type":"Launch","job":"train-abce9f12616f79be","attempt":1,"workers":[{"role":0,"index":0,"node":"node-0","devices":[1]}]}]');
INSERT INTO "journal" VALUES(7,1.79497762459534645077e+09,1,'[{"type":"JobSubmitted","spec":{"id":"fails-93a5b8c720d5333d","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","exit 3"]}}]','[{"type":"Launch","job":"fails-93a5b8c720d5333d","attempt":1,"workers":[{"role":0,"index":0,"node":"node-0"}]}]');
INSERT INTO "journal" VALUES(9,1.7949776249019441604e+09,1,'[{"type":"JobStarted","job":"train-287ff410c02893b0","attempt":1,"at":1794977624.88519}]','[]');
INSERT INTO "journal" VALUES(10,1.79497762490822100646e+09,1,'[{"type":"JobStarted","job":"train-abce9f12616f79be","attempt":1,"at":1794977624.8831892}]','[]');
INSERT INTO "journal" VALUES(11,1.79497762492765378953e+09,1,'[{"type":"JobStarted","job":"fails-93a5b8c720d5333d","attempt":1,"at":1794977624.9051561}]','[]');
INSERT INTO "journal" VALUES(12,1.79497762495950531963e+09,1,'[{"type":"JobExited","job":"fails-93a5b8c720d5333d","attempt":1,"outcome":"failed","reason":{"code":"error","text":"worker-0 ended with exit code 3"},"exit_code":3}]','[]');
INSERT INTO "journal" VALUES(13,1794977625.90205,1,'[{"type":"Progress","job":"train-287ff410c02893b0","attempt":1,"done":0.05,"detail":{"loss":1.0,"step":1,"steps":20}}]','[]');
INSERT INTO "journal" VALUES(14,1.79497762591914844509e+09,1,'[{"type":"Progress","job":"train-abce9f12616f79be","attempt":1,"done":0.05,"detail":{"loss":1.0,"step":1,"steps":20}}]','[]');
INSERT INTO "journal" VALUES(15,1.79497762691041135791e+09,1,'[{"type":"Progress","job":"train-287ff410c02893b0","attempt":1,"done":0.55,"detail":{"loss":0.09090909090909091,"step":11,"steps":20,"step_s":0.10015700100007052}},{"type":"Progress","job":"train-abce9f12616f79be","attempt":1,"done":0.55,"detail":{"loss":0.09090909090909091,"step":11,"steps":20,"step_s":0.1008590589999585}}]','[]');
INSERT INTO "journal" VALUES(17,1.79497762712334609034e+09,1,'[{"type":"Progress","job":"train-abce9f12616f79be","attempt":1,"done":1.0,"detail":{"loss":0.05,"step":20,"steps":20,"step_s":0.10015637800006516}}]','[]');
INSERT INTO "journal" VALUES(18,1.79497762717114686965e+09,1,'[{"type":"JobExited","job":"train-abce9f12616f79be","attempt":1,"outcome":"succeeded","reason":{"code":"exited","text":"every worker ended well"},"exit_code":0}]','[]');
INSERT INTO "journal" VALUES(19,1.79497762723911738393e+09,1,'[{"type":"Progress","job":"train-287ff410c02893b0","attempt":1,"done":1.0,"detail":{"loss":0.05,"step":20,"steps":20,"step_s":0.10014832000001661}}]','[]');
INSERT INTO "journal" VALUES(20,1.79497762728715324403e+09,1,'[{"type":"JobExited","job":"train-287ff410c02893b0","attempt":1,"outcome":"succeeded","reason":{"code":"exited","text":"every worker ended well"},"exit_code":0}]','[]');
INSERT INTO "journal" VALUES(21,1.79497762749965858461e+09,1,'[{"type":"JobSubmitted","spec":{"id":"halted-11ff6ef4ae7d1923","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":1000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","sleep 3600"]},"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.2472089315505073,"p50":2794.251575118397,"p90":16675.109175949125,"unit":"s","source":"history of 1 runs"}}}]','[{"type":"Launch","job":"halted-11ff6ef4ae7d1923","attempt":1,"workers":[{"role":0,"index":0,"node":"node-0","devices":[0]}]}]');
INSERT INTO "journal" VALUES(23,1.79497762775255680078e+09,1,'[{"type":"JobStarted","job":"halted-11ff6ef4ae7d1923","attempt":1,"at":1794977627.733347}]','[]');
INSERT INTO "journal" VALUES(24,1.79497762798741054531e+09,1,'[{"type":"HaltRequested","job":"halted-11ff6ef4ae7d1923"}]','[{"type":"Stop","job":"halted-11ff6ef4ae7d1923","attempt":1,"intent":"halt","reason":{"code":"requested","text":"halted by request"}}]');
INSERT INTO "journal" VALUES(26,1.79497762801923727992e+09,1,'[{"type":"StageChanged","job":"halted-11ff6ef4ae7d1923","attempt":1,"stage":"stopping"}]','[]');
INSERT INTO "journal" VALUES(27,1.79497762805736804005e+09,1,'[{"type":"JobExited","job":"halted-11ff6ef4ae7d1923","attempt":1,"outcome":"stopped","reason":{"code":"requested","text":"halted by request"}}]','[]');
INSERT INTO "journal" VALUES(28,1.79497762822910618789e+09,1,'[{"type":"JobSubmitted","spec":{"id":"runs-a-8fc93b5c109d09ed","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":4000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","sleep 3600"]},"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}}}]','[{"type":"Launch","job":"runs-a-8fc93b5c109d09ed","attempt":1,"workers":[{"role":0,"index":0,"node":"node-0","devices":[0,1,2,3]}]}]');
INSERT INTO "journal" VALUES(30,1.79497762843126559256e+09,1,'[{"type":"JobStarted","job":"runs-a-8fc93b5c109d09ed","attempt":1,"at":1794977628.41926}]','[]');
INSERT INTO "journal" VALUES(31,1.79497762846314430238e+09,1,'[{"type":"JobSubmitted","spec":{"id":"runs-b-904f7e940374a5c3","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":4000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","sleep 3600"]},"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}}}]','[{"type":"Launch","job":"runs-b-904f7e940374a5c3","attempt":1,"workers":[{"role":0,"index":0,"node":"node-1","devices":[0,1,2,3]}]}]');
INSERT INTO "journal" VALUES(33,1.79497762866277241712e+09,1,'[{"type":"JobStarted","job":"runs-b-904f7e940374a5c3","attempt":1,"at":1794977628.6535347}]','[]');
INSERT INTO "journal" VALUES(34,1.79497762871599435803e+09,1,'[{"type":"JobSubmitted","spec":{"id":"waits-ef49f96d62138096","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":4000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","true"]},"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}}}]','[]');
CREATE TABLE knowledge (
	name TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (name, number)
);
INSERT INTO "knowledge" VALUES('cluster/fine',1,X'5B313739343937373631392E3132382C20322E302C20382E302C20302E302C20302E302C20302E302C20302E302C20302E302C20302E302C20302E302C20302E305D');
INSERT INTO "knowledge" VALUES('models/step_time/judged',1,X'5B322E3939323930342C2066616C73655D');
INSERT INTO "knowledge" VALUES('models/step_time/runs',1,X'7B227369676E6174757265223A2022633130303230313837366238623537376638383839363831222C2022646576696365223A2022677075222C20226174223A20313739343937373632372E313731313436392C202261637475616C223A203130302E31353633373830303030363531362C2022666F72657365656E223A20352E3032322C202273697A6573223A207B22737465705F67666C6F70223A20302E3033323039363235362C2022706172616D735F6D223A20302E3636393730362C202261637469766174696F6E735F6D223A20302E3030383237322C20226261746368223A20382E302C202267707573223A20312E307D7D');
INSERT INTO "knowledge" VALUES('models/memory/runs',1,X'7B227369676E6174757265223A2022633130303230313837366238623537376638383839363831222C2022646576696365223A2022686F7374222C20226174223A20313739343937373632372E313731313436392C202261637475616C223A2031332E3731357D');
INSERT INTO "knowledge" VALUES('models/step_time/judged',2,X'5B322E3939323832342C2066616C73655D');
INSERT INTO "knowledge" VALUES('models/step_time/runs',2,X'7B227369676E6174757265223A2022633130303230313837366238623537376638383839363831222C2022646576696365223A2022677075222C20226174223A20313739343937373632372E323837313533322C202261637475616C223A203130302E31343833323030303030313636312C2022666F72657365656E223A20352E3032322C202273697A6573223A207B22737465705F67666C6F70223A20302E3033323039363235362C2022706172616D735F6D223A20302E3636393730362C202261637469766174696F6E735F6D223A20302E3030383237322C20226261746368223A20382E302C202267707573223A20312E307D7D');
INSERT INTO "knowledge" VALUES('models/memory/runs',2,X'7B227369676E6174757265223A2022633130303230313837366238623537376638383839363831222C2022646576696365223A2022686F7374222C20226174223A20313739343937373632372E323837313533322C202261637475616C223A2031332E3530387D');
INSERT INTO "knowledge" VALUES('cluster/fine',2,X'5B313739343937373632392E3236342C20322E302C20382E302C20382E302C20312E302C20322E302C20322E302C20302E302C203531322E302C20332E3238312C20302E305D');
INSERT INTO "knowledge" VALUES('jobs/runs-b-904f7e940374a5c3/progress',1,X'7B226174223A20313739343937373632392E3236342C2022617474656D7074223A20312C2022776F726B657273223A20312C202270726F6772657373223A207B7D7D');
INSERT INTO "knowledge" VALUES('jobs/runs-a-8fc93b5c109d09ed/progress',1,X'7B226174223A20313739343937373632392E3236342C2022617474656D7074223A20312C2022776F726B657273223A20312C202270726F6772657373223A207B7D7D');
INSERT INTO "knowledge" VALUES('forecasts/open',1,X'5B5B2277616974732D65663439663936643632313338303936222C20313739343937373632382E393539323831372C20312E302C20332E383633363235383834303536303931332C20333734322E3539383935323338383736365D5D');
INSERT INTO "knowledge" VALUES('models/learned-until',3,X'3233');
CREATE TABLE outbox (
	id INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	url TEXT NOT NULL, 
	body TEXT NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_at DOUBLE, 
	delivered_at DOUBLE, 
	PRIMARY KEY (id)
);
CREATE TABLE snapshots (
	position INTEGER NOT NULL, 
	now DOUBLE NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (position)
);
INSERT INTO "snapshots" VALUES(35,1.79497762871599435803e+09,'{"now":1794977628.7159944,"seed":0,"nodes":[{"node":{"name":"node-0","devices":[{},{},{},{}]},"open":true,"free":[1125899906841624,1125899906842368,[0,0,0,0],[1125899906842624,1125899906842624,1125899906842624,1125899906842624],[1,1,1,1]]},{"node":{"name":"node-1","devices":[{},{},{},{}]},"open":true,"free":[1125899906841624,1125899906842368,[0,0,0,0],[1125899906842624,1125899906842624,1125899906842624,1125899906842624],[1,1,1,1]]}],"down":[],"draining":[],"jobs":[{"spec":{"id":"halted-11ff6ef4ae7d1923","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":1000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","sleep 3600"]},"seq":3,"submitted_at":1794977627.4996586,"since":1794977628.057368,"state":"halted","attempt":1,"reason":{"code":"requested","text":"halted by request"},"stage":"stopping","estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.2472089315505073,"p50":2794.251575118397,"p90":16675.109175949125,"unit":"s","source":"history of 1 runs"}},"ran_s":0.25406360626220703,"gpu_s":0.25406360626220703,"mark":1794977627.9874105},{"spec":{"id":"runs-a-8fc93b5c109d09ed","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":4000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","sleep 3600"]},"seq":4,"submitted_at":1794977628.2291062,"since":1794977628.4312656,"state":"running","attempt":1,"allocation":[{"role":0,"index":0,"node":"node-0","devices":[0,1,2,3]}],"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}},"mark":1794977628.41926,"held_milli":4000},{"spec":{"id":"runs-b-904f7e940374a5c3","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":4000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","sleep 3600"]},"seq":5,"submitted_at":1794977628.4631443,"since":1794977628.6627724,"state":"running","attempt":1,"allocation":[{"role":0,"index":0,"node":"node-1","devices":[0,1,2,3]}],"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}},"mark":1794977628.6535347,"held_milli":4000},{"spec":{"id":"waits-ef49f96d62138096","roles":[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":4000}}],"owner":"admin","checkpointable":false,"entrypoint":["sh","-c","true"]},"seq":6,"submitted_at":1794977628.7159944,"since":1794977628.7159944,"estimates":{"version":"memory 0, step_time 0, utilization 0","runtime_s":{"p10":1.7289617987865125,"p50":549.0099597319493,"p90":12837.195331027058,"unit":"s","source":"history of 3 runs"}}}],"active":["runs-a-8fc93b5c109d09ed","runs-b-904f7e940374a5c3"],"reservations":{},"usage":{"default":8000},"wake_at":null,"submitted":7,"shapes":[[[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":1000}}],3],[[{"resources":{"cpu_milli":1000,"memory_mib":256}}],1],[[{"resources":{"cpu_milli":1000,"memory_mib":256,"gpu_milli":4000}}],3]],"scaling":[],"speeds":{},"rules":{"policy":"{\"order\":\"fifo\",\"threshold_gpu_s\":18000.0,\"round_s\":60.0,\"mode\":\"strict\",\"backfill\":true,\"backfill_depth\":100,\"placement\":\"pack\",\"topology_levels\":[\"rack\",\"area\"],\"gang\":true,\"preempt\":\"none\",\"elastic\":false,\"shrink_after_s\":0.0,\"grow_after_s\":0.0,\"grow_by\":\"gain\",\"resize_cost_s\":0.0,\"max_jobs_per_gpu\":null,\"colocate\":false,\"max_slowdown\":1.5,\"idle_worth\":0.03,\"profile_s\":0.0,\"profile_gpus\":0,\"move_gain_s\":0.0,\"queues\":{}}","predictor":"time sharing; declared-1; scaling of any job"}}');
CREATE TABLE tokens (
	digest TEXT NOT NULL, 
	user TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	revoked_at DOUBLE, 
	PRIMARY KEY (digest), 
	FOREIGN KEY(user) REFERENCES users (name) ON DELETE CASCADE
);
INSERT INTO "tokens" VALUES('0e4454707b9d4e5569cf8eab82eeed17da179c2736456e8069f86a6cf704e04a','admin',1.79497761781247949603e+09,NULL);
INSERT INTO "tokens" VALUES('b461a35be1479507582f8de99003614ef51c9a944b2cb2a331b59f116380618f','ada',1.79497762011574196814e+09,NULL);
CREATE TABLE transitions (
	number INTEGER NOT NULL, 
	job TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	status TEXT NOT NULL, 
	reason_code TEXT NOT NULL, 
	reason_text TEXT NOT NULL, 
	PRIMARY KEY (number), 
	FOREIGN KEY(job) REFERENCES jobs (id)
);
INSERT INTO "transitions" VALUES(1,'train-287ff410c02893b0',1.79497762444336271285e+09,'QUEUED','ok','');
INSERT INTO "transitions" VALUES(2,'train-287ff410c02893b0',1.79497762444387912745e+09,'DOWNLOADING','ok','');
INSERT INTO "transitions" VALUES(3,'train-abce9f12616f79be',1.79497762449266886706e+09,'QUEUED','ok','');
INSERT INTO "transitions" VALUES(4,'train-abce9f12616f79be',1.79497762453134155269e+09,'DOWNLOADING','ok','');
INSERT INTO "transitions" VALUES(5,'fails-93a5b8c720d5333d',1.79497762457956743236e+09,'QUEUED','ok','');
INSERT INTO "transitions" VALUES(6,'fails-93a5b8c720d5333d',1.79497762459534645077e+09,'DOWNLOADING','ok','');
INSERT INTO "transitions" VALUES(7,'train-287ff410c02893b0',1.7949776249019441604e+09,'PROCESSING','ok','');
INSERT INTO "transitions" VALUES(8,'train-abce9f12616f79be',1.79497762490822100646e+09,'PROCESSING','ok','');
INSERT INTO "transitions" VALUES(9,'fails-93a5b8c720d5333d',1.79497762492765378953e+09,'PROCESSING','ok','');
INSERT INTO "transitions" VALUES(10,'fails-93a5b8c720d5333d',1.79497762495950531963e+09,'FAILED','error','worker-0 ended with exit code 3');
INSERT INTO "transitions" VALUES(11,'train-abce9f12616f79be',1.79497762717114686965e+09,'COMPLETED','exited','every worker ended well');
INSERT INTO "transitions" VALUES(12,'train-287ff410c02893b0',1.79497762728715324403e+09,'COMPLETED','exited','every worker ended well');
INSERT INTO "transitions" VALUES(13,'halted-11ff6ef4ae7d1923',1.79497762749938273435e+09,'QUEUED','ok','');
INSERT INTO "transitions" VALUES(14,'halted-11ff6ef4ae7d1923',1.79497762749965858461e+09,'DOWNLOADING','ok','');
INSERT INTO "transitions" VALUES(15,'halted-11ff6ef4ae7d1923',1.79497762775255680078e+09,'PROCESSING','ok','');
INSERT INTO "transitions" VALUES(16,'halted-11ff6ef4ae7d1923',1.79497762805736804005e+09,'HALTED','requested','halted by request');
INSERT INTO "transitions" VALUES(17,'runs-a-8fc93b5c109d09ed',1.79497762822887969012e+09,'QUEUED','ok','');
INSERT INTO "transitions" VALUES(18,'runs-a-8fc93b5c109d09ed',1.79497762822910618789e+09,'DOWNLOADING','ok','');
INSERT INTO "transitions" VALUES(19,'runs-a-8fc93b5c109d09ed',1.79497762843126559256e+09,'PROCESSING','ok','');
INSERT INTO "transitions" VALUES(20,'runs-b-904f7e940374a5c3',1794977628.45832,'QUEUED','ok','');
INSERT INTO "transitions" VALUES(21,'runs-b-904f7e940374a5c3',1.79497762846314430238e+09,'DOWNLOADING','ok','');
INSERT INTO "transitions" VALUES(22,'runs-b-904f7e940374a5c3',1.79497762866277241712e+09,'PROCESSING','ok','');
INSERT INTO "transitions" VALUES(23,'waits-ef49f96d62138096',1.79497762871579670911e+09,'QUEUED','ok','');
CREATE TABLE users (
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	team TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "users" VALUES('admin','admin','',1.79497761781247949603e+09);
INSERT INTO "users" VALUES('ada','user','vision',1.79497762011574196814e+09);
CREATE INDEX jobs_by_team ON jobs (team, seq);
CREATE INDEX jobs_by_status ON jobs (status, seq);
CREATE INDEX jobs_by_owner ON jobs (owner, seq);
CREATE INDEX jobs_by_queue ON jobs (queue, seq);
CREATE INDEX outbox_by_next_at ON outbox (next_at);
CREATE INDEX audit_by_job ON audit (job, number);
CREATE INDEX transitions_by_job ON transitions (job, number);
CREATE INDEX tokens_by_user ON tokens (user);
COMMIT;
