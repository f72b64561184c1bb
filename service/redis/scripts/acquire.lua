#!lua flags=allow-oom
-- Take the lease of a partition if nobody holds it, and say where to go on.
-- KEYS: lease, meta, log
-- ARGV: token, lease ms, '1' when this acquisition counts as an attempt, format of this version,
--       failures that set a command aside, ms that they last at least where none is certain
-- Answers false when held, {format} when that of the partition is later than this version's,
-- else {epoch, offset, earlier attempts, 1 if the log was rolled back, earlier trials of the next
-- command alone, 1 if it is to be set aside}.
local lease, meta, log = KEYS[1], KEYS[2], KEYS[3]
if redis.call('EXISTS', lease) == 1 then
  return false
end

local function parts(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

local function last_id()
  if redis.call('EXISTS', log) == 0 then
    return '0-0'
  end
  local info = redis.call('XINFO', 'STREAM', log)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return info[i + 1]
    end
  end
end

local fields =
  redis.call('HMGET', meta, 'offset', 'attempts', 'attempt_offset', 'in', 'done', 'format',
    'trying', 'tries')
local format = tonumber(fields[6] or '1')
if format > tonumber(ARGV[4]) then
  return {format}
end
local offset = fields[1] or '0-0:-1'
local entry, index = string.match(offset, '^(%d+%-%d+):(%-?%d+)$')
local appended, done = tonumber(fields[4] or '0'), tonumber(fields[5] or '0')

-- A log that was rolled back (failover, lost file) would give new entries ids below the offset,
-- where nobody would ever read them: move its clock up to the offset.
local rolled_back = 0
local last = last_id()
local last_ms, last_seq = parts(last)
local ms, seq = parts(entry)
if ms > last_ms or (ms == last_ms and seq > last_seq) then
  rolled_back = 1
  if redis.call('EXISTS', log) == 1 then
    redis.call('XSETID', log, entry)
  else
    redis.call('XADD', log, entry, 'b', '')
    redis.call('XTRIM', log, 'MAXLEN', '=', 0)
  end
end

-- index -1: the whole entry is applied, so what waits comes after it.
local from = index == '-1' and '(' .. entry or entry
local first = redis.call('XRANGE', log, from, '+', 'COUNT', 1)[1]
local waiting = first ~= nil

-- What is left of trials (see trial.lua) of the command that comes next. A failure is certain
-- where the worker lived to report it, or its supervisor saw what it died of. A worker that did
-- not come back may as well have been killed by others: such ends count once they go on for long.
local function judge(tries)
  local now = redis.call('TIME')
  local oldest = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
  local long_ago = oldest - tonumber(ARGV[6])
  local all, certain = 0, 0
  for _, began in pairs(tries) do
    all = all + 1
    if began == 0 then
      certain = certain + 1
    else
      oldest = math.min(oldest, began)
    end
  end
  local limit = tonumber(ARGV[5])
  local guilty = certain >= limit or (all >= limit and oldest <= long_ago)
  return all, guilty and 1 or 0
end

local tried, guilty = 0, 0
if waiting then
  local next_index = first[1] == entry and tonumber(index) + 1 or 0
  if fields[7] == first[1] .. ':' .. next_index then
    tried, guilty = judge(cjson.decode(fields[8]))
  end
end

local earlier, attempts = 0, 0
if waiting then
  if fields[3] == offset then
    earlier = tonumber(fields[2] or '0')
  end
  attempts = ARGV[3] == '1' and earlier + 1 or earlier
elseif appended ~= done then
  -- Nothing waits, whatever the counters say: a drift would refuse appends for ever.
  local most = string.format('%.0f', math.max(appended, done))
  redis.call('HSET', meta, 'in', most, 'done', most)
end

redis.call('HSET', meta, 'offset', offset, 'attempts', attempts, 'attempt_offset', offset,
  'format', ARGV[4])
local epoch = redis.call('HINCRBY', meta, 'epoch', 1)
redis.call('SET', lease, ARGV[1], 'PX', ARGV[2])
return {epoch, offset, earlier, rolled_back, tried, guilty}
