"""A CSV file that is dropped on the list of streams, or chosen, becomes streams."""

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type: "text/csv" }));
  for (const kind of ["dragover", "drop"])
    document.querySelector("main h1").dispatchEvent(
      new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def choose(page, name, text):
    file = {"name": name, "mimeType": "text/csv", "buffer": text.encode()}
    page.get_by_label("Add streams from CSV").set_input_files(file)


def labels(client, stream):
    records = client.get(f"/v1/streams/{stream}/history?limit=1000").json()["observations"]
    return [(each["y"], each["time"]) for each in records]


def test_each_numeric_column_becomes_a_stream(page, demo, client):
    lines = [f"2024-05-01 10:{i:02d}:00,{i / 4},{i * 2 if i % 5 else ''},on" for i in range(30)]
    text = "\ufefftime,Flow (l/s),count,state\r\n" + "\r\n".join(lines) + "\r\n"
    page.goto(demo)
    page.wait_for_selector(".streams tbody tr")
    page.evaluate(DROP, ["plant.csv", text])
    offer = page.get_by_label("Streams from CSV", exact=True)
    expect(offer).to_contain_text("60 observations of plant.Flow-l-s-, plant.count.")
    assert client.get("/v1/streams?prefix=plant.").json()["streams"] == []  # not yet
    page.get_by_role("button", name="Create 2 streams").click()
    expect(page.get_by_text("Created 2 streams:")).to_be_visible()
    times = [f"2024-05-01T10:{i:02d}:00.000Z" for i in range(30)]
    flow, counted = labels(client, "plant.Flow-l-s-"), labels(client, "plant.count")
    assert [y for y, _ in flow] == [i / 4 for i in range(30)]
    assert [y for y, _ in counted] == [float(i * 2) if i % 5 else None for i in range(30)]
    assert [time.replace("+00:00", "Z") for _, time in flow] == times
    page.get_by_label("Search ids").fill("plant.")  # other tests have left more than a page
    expect(page.get_by_role("row", name="plant.count")).to_be_visible()
    choose(page, "plant.csv", text)
    expect(page.get_by_role("alert")).to_contain_text("There is a stream “plant.Flow-l-s-” already")


def test_a_column_names_the_streams_and_many_rows_go_in_parts(page, demo, client):
    rows = [(f"csv-{max(0, i - 509) % 3}", i) for i in range(519)]  # 500 in a request
    text = "stream;value\n" + "\n".join(f'"{name}";{y}' for name, y in rows)
    page.goto(demo)
    choose(page, "many.csv", text)
    page.get_by_role("button", name="Create 3 streams").click()
    expect(page.get_by_text("Created 3 streams:")).to_be_visible(timeout=120_000)
    for i in range(3):
        expected = [float(y) for name, y in rows if name == f"csv-{i}"]
        assert [y for y, _ in labels(client, f"csv-{i}")] == expected
        assert len(expected) == (513 if i == 0 else 3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n", "at least one line of numbers"),
        ("a,b\n1,2\n3\n", "Line 3 has 1 cells, and the first line 2 names"),
        ("a,b\nx,y\n", "No column has only numbers, among a, b"),
        ("stream,a,b\ns,1,2\n", "expected one column of numbers, or one that is called y"),
        ("stream,y\na b,1\n", "Line 2: expected an id of letters"),
        ("stream,y\n..,1\n", "Line 2: expected an id of letters"),
        ("a b,a-b\n1,2\n", "Two columns would be the stream bad.a-b"),
        ("time,y\nnoon,1\n", "Line 2: expected a time such as"),
        ('y,z\n1,"2\n', "A quotation mark is not closed"),
        ("stream,y\n" + "".join(f"s{i},1\n" for i in range(51)), "at most 50"),
        ("y\n" + "1\n" * 50_001, "more than 50,000 lines"),
        ("y\n" + "1.00000000000\n" * 400_000, "at most 5 MB"),
    ],
)
def test_what_cannot_become_streams_is_refused_with_the_reason(page, demo, client, text, why):
    before = client.get("/v1/overview?limit=1").json()["total"]
    page.goto(demo)
    choose(page, "bad.csv", text)
    expect(page.get_by_role("alert")).to_contain_text("Cannot read bad.csv")
    expect(page.get_by_role("alert")).to_contain_text(why)
    assert client.get("/v1/overview?limit=1").json()["total"] == before
