"""Ranking quality: a small labelled set, and how often `discover`, `recall` and plain BM25 find what was meant.

The set was written for this package, so it shows kinds of queries and no more: it is far too small to say how one
search compares with another in general. Some queries share no word with what they mean, and no search by words finds
that. BM25 is the library bm25s with its default numbers,
once with its own tokenizer and once on the words that this package splits a text into.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

import bm25s

from sovereign_agent.ledger import Ledger
from sovereign_agent.memory import recall, remember
from sovereign_agent.text import words
from sovereign_agent.tools import Tool, ToolCatalog

NOW = datetime(2026, 1, 5, tzinfo=UTC)
MOST = 5

TOOLS = (
    Tool("read_inventory", "Read the stock of one article in a warehouse.", ("stock", "warehouse")),
    Tool("delete_inventory", "Delete the stock record of one article.", ("remove", "purge", "erase")),
    Tool("update_inventory", "Set the stock of one article to a counted number.", ("count", "stocktake")),
    Tool("list_orders", "List the orders of one customer, newest first.", ("purchases", "bought")),
    Tool("cancel_order", "Cancel an order that has not been shipped.", ("annul", "call off")),
    Tool("createInvoice", "Create an invoice for a shipped order.", ("bill", "charge")),
    Tool("sendInvoice", "Send an invoice to a customer by post or mail.", ("bill", "mail out")),
    Tool("getHTTPHeaders", "Fetch the headers of a web address.", ("curl", "response")),
    Tool("parseJSONFile", "Parse a file and return its values.", ("decode", "deserialize")),
    Tool("resizeImage", "Scale a picture to a width and a height.", ("photo", "thumbnail", "shrink")),
    Tool("rotateImage", "Turn a picture by a number of degrees.", ("photo", "turn")),
    Tool("send_email", "Send a message to one address.", ("mail", "write to")),
    Tool("search_email", "Search messages by sender, subject or date.", ("mail", "inbox")),
    Tool("schedule_meeting", "Put a meeting into the calendars of several people.", ("appointment", "invite")),
    Tool("list_meetings", "List the meetings of one day.", ("appointments", "agenda")),
    Tool("convert_currency", "Convert an amount from one currency to another.", ("exchange rate", "money")),
    Tool("get_weather", "Tell the weather of a place for the next days.", ("forecast", "rain", "temperature")),
    Tool("translate_text", "Translate a text into another language.", ("language", "interpret")),
    Tool("summarize_text", "Shorten a text to its main points.", ("abstract", "digest", "tl;dr")),
    Tool("run_query", "Run a query on the database and return its rows.", ("sql", "select")),
    Tool("backup_database", "Write a copy of the database to another disk.", ("dump", "snapshot")),
    Tool("restore_database", "Bring a database back from a copy.", ("recover", "rollback")),
    Tool("open_ticket", "Open a ticket for the support team.", ("issue", "incident")),
    Tool("close_ticket", "Close a ticket that is solved.", ("resolve", "done")),
    Tool("book_flight", "Book a flight between two cities.", ("plane", "airline", "travel")),
    Tool("book_hotel", "Book a room in a hotel.", ("accommodation", "stay")),
    Tool("track_parcel", "Tell where a parcel is.", ("shipment", "package", "delivery status")),
    Tool("create_user", "Create an account for a new user.", ("sign up", "register")),
    Tool("disable_user", "Disable the account of a user.", ("lock out", "suspend")),
    Tool("rotate_keys", "Replace the keys of a service by new ones.", ("credentials", "secrets")),
    Tool("lagerbestand_lesen", "Den Bestand eines Artikels im Lager lesen.", ("Vorrat", "Bestand")),
    Tool("rechnung_erstellen", "Eine Rechnung für eine gelieferte Bestellung erstellen.", ("Faktura", "abrechnen")),
    Tool("rechnung_stornieren", "Eine Rechnung stornieren, die noch nicht bezahlt ist.", ("zurücknehmen",)),
    Tool("größe_ändern", "Die Größe eines Bildes ändern.", ("Bild", "skalieren")),
    Tool("termin_vereinbaren", "Einen Termin mit mehreren Personen vereinbaren.", ("Besprechung", "Kalender")),
    Tool("straße_suchen", "Eine Straße auf der Karte suchen.", ("Adresse", "Stadtplan")),
    Tool("đọc_tồn_kho", "Đọc số lượng tồn kho của một mặt hàng.", ("hàng tồn", "kho")),
    Tool("tạo_hóa_đơn", "Tạo hóa đơn cho một đơn hàng đã giao.", ("tính tiền",)),
    Tool("hủy_đơn_hàng", "Hủy một đơn hàng chưa giao.", ("bỏ đơn",)),
    Tool("gửi_thư", "Gửi thư điện tử cho một người.", ("email", "tin nhắn")),
    Tool("đặt_phòng", "Đặt phòng khách sạn ở một thành phố.", ("khách sạn", "lưu trú")),
    Tool("tìm_đường", "Tìm đường đi giữa hai địa điểm.", ("bản đồ", "chỉ đường")),
    Tool("查询库存", "查询仓库中一种商品的库存数量。", ("存货", "仓库")),
    Tool("删除库存", "删除一种商品的库存记录。", ("清除",)),
    Tool("创建发票", "为已发货的订单创建发票。", ("开票", "账单")),
    Tool("取消订单", "取消尚未发货的订单。", ("退订",)),
    Tool("发送邮件", "向一个地址发送邮件。", ("电子邮件", "写信")),
    Tool("翻译文本", "把文本翻译成另一种语言。", ("语言", "译文")),
    # These hold every word that a user might ask with, again and again.
    Tool(
        "universal_helper",
        "Read inventory, read inventory, stock, warehouse, invoice, email, meeting, weather, database, ticket. " * 8,
        ("inventory", "invoice", "email", "meeting", "weather", "database", "ticket", "user", "flight", "hotel"),
    ),
    Tool(
        "best_tool_ever",
        "Delete inventory send email book flight book hotel translate text convert currency get weather. " * 8,
        ("delete", "send", "book", "translate", "convert", "get", "parcel", "backup", "restore", "keys"),
    ),
)

QUERIES: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "English": (
        ("read the stock of an article", ("read_inventory", "update_inventory")),
        ("cancel an order", ("cancel_order",)),
        ("weather of the next days", ("get_weather",)),
        ("translate into another language", ("translate_text",)),
        ("copy of the database", ("backup_database", "restore_database")),
        ("where is my parcel", ("track_parcel",)),
        ("account for a new user", ("create_user",)),
        ("headers of a web address", ("getHTTPHeaders",)),
        ("what is left on the shelves", ("read_inventory",)),
        ("tell me how hot it gets", ("get_weather",)),
        ("turn a photo", ("rotateImage",)),
        ("send a bill to a customer", ("sendInvoice",)),
        ("remove a stock record", ("delete_inventory",)),
    ),
    "German": (
        ("Lagerbestand lesen", ("lagerbestand_lesen",)),
        ("Rechnung erstellen", ("rechnung_erstellen",)),
        ("eine Rechnung stornieren", ("rechnung_stornieren",)),
        ("GRÖSSE ÄNDERN", ("größe_ändern",)),
        ("Termin mit Personen", ("termin_vereinbaren",)),
        ("STRASSE suchen", ("straße_suchen",)),
        ("Bild skalieren", ("größe_ändern",)),
        ("Besprechung im Kalender", ("termin_vereinbaren",)),
        ("offene Rechnungen", ("rechnung_erstellen", "rechnung_stornieren")),
        ("Adresse finden", ("straße_suchen",)),
    ),
    "Vietnamese": (
        ("đọc tồn kho", ("đọc_tồn_kho",)),
        ("tạo hóa đơn", ("tạo_hóa_đơn",)),
        ("hủy đơn hàng", ("hủy_đơn_hàng",)),
        ("gửi thư điện tử", ("gửi_thư",)),
        ("đặt phòng khách sạn", ("đặt_phòng",)),
        ("đường đi", ("tìm_đường",)),
        ("khách sạn", ("đặt_phòng",)),
        ("bản đồ thành phố", ("tìm_đường", "đặt_phòng")),
        ("tao hoa don", ("tạo_hóa_đơn",)),
        ("bỏ đơn hàng chưa giao", ("hủy_đơn_hàng",)),
    ),
    "Chinese": (
        ("查询库存", ("查询库存",)),
        ("删除商品库存", ("删除库存",)),
        ("创建发票", ("创建发票",)),
        ("取消订单", ("取消订单",)),
        ("发送邮件", ("发送邮件",)),
        ("翻译成另一种语言", ("翻译文本",)),
        ("写信给客户", ("发送邮件",)),
        ("账单", ("创建发票",)),
        ("退货", ("取消订单",)),
        ("仓库里还有多少商品", ("查询库存",)),
    ),
    "snake case": (
        ("read_inventory", ("read_inventory",)),
        ("delete_inventory", ("delete_inventory",)),
        ("backup_database", ("backup_database",)),
        ("inventory", ("read_inventory", "delete_inventory", "update_inventory")),
        ("ticket", ("open_ticket", "close_ticket")),
        ("close ticket", ("close_ticket",)),
    ),
    "camel case": (
        ("create invoice", ("createInvoice",)),
        ("sendInvoice", ("sendInvoice",)),
        ("http headers", ("getHTTPHeaders",)),
        ("parse json file", ("parseJSONFile",)),
        ("rotate image", ("rotateImage",)),
        ("image", ("resizeImage", "rotateImage")),
    ),
    "plural": (
        ("list order", ("list_orders",)),
        ("cancel orders", ("cancel_order",)),
        ("meeting list", ("list_meetings",)),
        ("convert currencies", ("convert_currency",)),
        ("rotate key", ("rotate_keys",)),
        ("run queries", ("run_query",)),
        ("track parcels", ("track_parcel",)),
        ("resize images", ("resizeImage",)),
        ("photos", ("resizeImage", "rotateImage")),
        ("invoices of customers", ("createInvoice", "sendInvoice")),
        ("cities", ("book_flight",)),
    ),
    "synonyms in keywords": (
        ("bill", ("createInvoice", "sendInvoice")),
        ("forecast", ("get_weather",)),
        ("appointment", ("schedule_meeting", "list_meetings")),
        ("tl;dr", ("summarize_text",)),
        ("sign up", ("create_user",)),
        ("lock out", ("disable_user",)),
        ("airline", ("book_flight",)),
        ("exchange rate", ("convert_currency",)),
        ("dump", ("backup_database",)),
        ("purge", ("delete_inventory",)),
        ("suspend an account", ("disable_user",)),
        ("new credentials", ("rotate_keys",)),
    ),
    "stuffing": (
        ("read inventory stock", ("read_inventory",)),
        ("delete inventory", ("delete_inventory",)),
        ("send email", ("send_email",)),
        ("book hotel", ("book_hotel",)),
        ("open ticket", ("open_ticket",)),
        ("get weather", ("get_weather",)),
        ("translate text", ("translate_text",)),
        ("schedule meeting", ("schedule_meeting",)),
        ("read email", ("search_email",)),
        ("delete user", ("disable_user",)),
        ("book meeting", ("schedule_meeting",)),
    ),
}

LONG = (
    "Notes of the weekly call. We began late because two people had no sound. Marta told what the supplier of bolts "
    "answered: delivery takes nine weeks now, and a deposit is wanted. Then we spoke about the new shelves, who orders "
    "them, and whether the old ones can be sold. Nobody had an opinion about the colour. "
)
NOTES: Mapping[str, str] = {
    "long-call": LONG + "At the end we agreed that the warehouse in Gera closes on the third of May.",
    "long-travel": "Travel report. The train was late, the hotel was loud, breakfast was good. The customer showed us "
    "the hall, the crane, the office and the canteen. They want the offer by Friday, with a price for the crane "
    "inspection and one for spare parts, and they asked twice about the warranty of the gearbox. " * 2,
    "long-manual": "How to restart the press. Switch off the main switch and wait. Open the left door, look at the "
    "pressure gauge, and let the pressure go down. Press the green button for three seconds. If the lamp blinks red, "
    "the filter is clogged: change the filter and begin again. Write it into the book. ",
    "short-gera": "Gera is cold in May.",
    "short-crane": "The crane is yellow.",
    "short-filter": "Coffee filter paper is in the kitchen.",
    "short-late": "The train is late again.",
    "supplier": "The supplier of bolts answers on weekdays.",
    "paint": "Blue paint dries in two hours.",
    "invoice-rule": "Invoices are paid within thirty days.",
    "names-1": "Nguyễn Thị Hoa leads purchasing.",
    "names-2": "Jürgen Groß leads the warehouse.",
    "names-3": "Ana O'Neill answers questions about invoices.",
    "names-4": "Hoa has a day off on Monday.",
    "names-5": "Marta Kowalczyk speaks for the supplier of bolts.",
    "zh-1": "仓库在五月三日关闭。",
    "zh-2": "供应商的交货期是九周。",
    "zh-3": "发票在三十天内付款。",
    "ru-1": "Склад закрывается третьего мая.",
    "ru-2": "Поставщик отвечает по будням.",
    "vi-1": "Kho đóng cửa ngày ba tháng năm.",
    "vi-2": "Nhà cung cấp trả lời vào ngày thường.",
    "ja-1": "倉庫は五月三日に閉まります。",
    "th-1": "คลังสินค้าปิดวันที่สามพฤษภาคม",
}
QUESTIONS: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "short notes": (
        ("blue paint", ("paint",)),
        ("when are invoices paid", ("invoice-rule",)),
        ("supplier of bolts", ("supplier", "names-5", "long-call")),
        ("yellow crane", ("short-crane",)),
        ("how long until paint is dry", ("paint",)),
        ("weather in May", ("short-gera",)),
    ),
    "long notes": (
        ("when does the warehouse in Gera close", ("long-call",)),
        ("delivery of bolts takes how many weeks", ("long-call",)),
        ("price of the crane inspection", ("long-travel",)),
        ("the filter of the press is clogged", ("long-manual",)),
        ("warranty of the gearbox", ("long-travel",)),
        ("red lamp on the press", ("long-manual",)),
    ),
    "names": (
        ("Nguyễn Thị Hoa", ("names-1",)),
        ("Jürgen Gross", ("names-2",)),
        ("O'Neill", ("names-3",)),
        ("Kowalczyk", ("names-5",)),
        ("who is Hoa", ("names-1", "names-4")),
        ("Jurgen", ("names-2",)),
    ),
    "non-Latin": (
        ("仓库什么时候关闭", ("zh-1",)),
        ("发票付款", ("zh-3",)),
        ("СКЛАД закрывается", ("ru-1",)),
        ("поставщик", ("ru-2",)),
        ("nhà cung cấp", ("vi-2",)),
        ("倉庫", ("ja-1",)),
        ("คลังสินค้า", ("th-1",)),
        ("交货要几周", ("zh-2",)),
        ("ngày ba tháng năm", ("vi-1",)),
    ),
}


@dataclass(frozen=True, slots=True)
class Quality:
    """How well one search did on the queries of one group, each share between 0 and 1."""

    queries: int
    precision_at_1: float
    """Share of queries whose first result is one that was meant."""
    recall_at_5: float
    """Share of what was meant that stands among the first five."""


Search = Callable[[str], list[str]]
"""Answers a query with names, best first."""


def measured(search: Search, queries: Sequence[tuple[str, tuple[str, ...]]]) -> Quality:
    """Return how well a search answers labelled queries."""
    found = [(search(query)[:MOST], meant) for query, meant in queries]
    return Quality(
        queries=len(found),
        precision_at_1=sum(bool(names) and names[0] in meant for names, meant in found) / len(found),
        recall_at_5=sum(len({*names} & {*meant}) / len(meant) for names, meant in found) / len(found),
    )


def bm25(documents: Mapping[str, str], split: Callable[[str], Sequence[str]] | None) -> Search:
    """Return a search by BM25 over documents; `split` says what a word is, the library's tokenizer when None."""

    def tokens(texts: list[str]) -> list[list[str]]:
        if split is not None:
            return [list(split(text)) for text in texts]
        found: list[list[str]] = bm25s.tokenize(texts, stopwords=None, return_ids=False, show_progress=False)
        return found

    names = list(documents)
    index = bm25s.BM25()
    index.index(tokens(list(documents.values())), show_progress=False)

    def search(query: str) -> list[str]:
        places, scores = index.retrieve(tokens([query]), k=min(MOST, len(names)), show_progress=False)
        return [names[place] for place, score in zip(places[0], scores[0], strict=True) if score > 0]

    return search


def tool_text(tool: Tool) -> str:
    """Return what BM25 reads of a tool."""
    return f"{tool.name} {' '.join(tool.keywords)} {tool.description}"


def compare(ours: Search, documents: Mapping[str, str], queries: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]
            ) -> dict[str, dict[str, Quality]]:  # fmt: skip
    """Return each group's quality by the name of the search."""
    searches = {"ours": ours, "BM25": bm25(documents, None), "BM25 on our words": bm25(documents, words)}
    return {
        group: {name: measured(search, asked) for name, search in searches.items()} for group, asked in queries.items()
    }


def tools() -> dict[str, dict[str, Quality]]:
    """Compare `discover` with BM25."""
    catalog = ToolCatalog(TOOLS)
    return compare(
        lambda query: [tool.name for tool in catalog.discover(query, limit=MOST).tools],
        {tool.name: tool_text(tool) for tool in TOOLS},
        QUERIES,
    )


def memories() -> dict[str, dict[str, Quality]]:
    """Compare `recall` without vectors with BM25; all notes are of one age and importance."""
    with tempfile.TemporaryDirectory() as folder, closing(Ledger.open(folder)) as kept:
        for name, text in NOTES.items():
            remember(kept, name, text, created_at=NOW, now=NOW)

        def ours(query: str) -> list[str]:
            return [hit.id for hit in recall(kept, query, actor_id="a", limit=MOST, now=NOW)]

        return compare(ours, NOTES, QUESTIONS)
